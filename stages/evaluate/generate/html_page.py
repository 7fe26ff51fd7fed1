"""Everything that the model wrote on one page of HTML, for people.

It has no script and needs no other file. The template escapes every value (Jinja2's autoescape): prompts come from the
corpus and from problem sets, the rest from the model.
"""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stages.evaluate.generate.looks import Look
from stages.formats.evaluation.generation import Generation

TEMPLATE = Path(__file__).with_name("samples.html.jinja")


def html_page(report: Generation, looks: Sequence[Look]) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"percent": "{:.0%}".format}
    return environment.get_template(TEMPLATE.name).render(
        report=report,
        parts=[
            ("Held-out headers", report.headers, [look for look in looks if look.text.kind == "header"]),
            ("Code problems", report.problems, [look for look in looks if look.text.kind == "problem"]),
        ],
    )
