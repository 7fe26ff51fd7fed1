"""Everything that the model wrote on one page of HTML, for people."""

from collections.abc import Sequence
from pathlib import Path

from stages.evaluate.generate.looks import Look
from stages.formats.evaluation.generation import Generation
from stages.formats.pages import filled_template

TEMPLATE = Path(__file__).with_name("samples.html.jinja")


def html_page(report: Generation, looks: Sequence[Look]) -> str:
    """The page."""
    return filled_template(
        TEMPLATE,
        {"percent": "{:.0%}".format},
        report=report,
        parts=[
            ("Held-out headers", report.headers, [look for look in looks if look.text.kind == "header"]),
            ("Code problems", report.problems, [look for look in looks if look.text.kind == "problem"]),
        ],
    )
