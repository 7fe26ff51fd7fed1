"""What the model wrote: the report, with the settings that it was generated with; and all of it on one page."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from stages.evaluate.generate.asked import OpenSet, sampling_of
from stages.evaluate.generate.looks import Look, mean, summed_up
from stages.evaluate.generate.params import GenerateParams
from stages.formats.evaluation.figures import SIGNIFICANT_DIGITS, releases
from stages.formats.evaluation.generation import Generation, ProblemSetReceipt, Receipts, SampleCounts
from stages.formats.evaluation.problems import problems_sha256
from stages.formats.evaluation.samples import Sample
from stages.formats.html import filled_template
from stages.formats.model_folder import MODEL, weights_sha256

TEMPLATE = Path(__file__).with_name("samples.html.jinja")


def generation(
    params: GenerateParams,
    sets: Sequence[OpenSet],
    samples: Sequence[Sample],
    looks: Sequence[Look],
    prompts_cut: int,
) -> Generation:
    """The report. `prompts_cut` is how many prompts were longer than the model reads."""
    return Generation(
        samples=SampleCounts(
            functions=len(samples),
            parsed=sum(bool(sample.parses) for sample in samples),
            parsed_share=mean(sample.parses for sample in samples),
            cut_off=sum(not sample.finished for sample in samples),
        ),
        headers=summed_up([look for look in looks if look.text.kind == "header"]),
        problems=summed_up([look for look in looks if look.text.kind == "problem"]),
        receipts=Receipts(
            weights_sha256=weights_sha256(MODEL),
            problem_sets={
                problems_sha256(one.problems): ProblemSetReceipt(name=one.name, problems=len(one.problems))
                for one in sets
            },
            seed=params.seed,
            width=params.width,
            prompts_cut=prompts_cut,
            sampling={"headers": asdict(sampling_of(params.headers)), "problems": asdict(sampling_of(params.problems))},
            versions=releases(),
        ),
    )


def html_page(report: Generation, looks: Sequence[Look]) -> str:
    """Everything that the model wrote on one page of HTML, for people."""
    return filled_template(
        TEMPLATE,
        {"percent": "{:.0%}".format},
        report=report,
        parts=[
            ("Held-out headers", report.headers, [look for look in looks if look.text.kind == "header"]),
            ("Code problems", report.problems, [look for look in looks if look.text.kind == "problem"]),
        ],
    )


def looks_csv(looks: Iterable[Look]) -> str:
    """A row for each text, with a heading."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(("kind", "name", "sample", "ended", "tokens", "parses", "compiles", "repeated", "longest_shared"))
    for one in looks:
        text = one.text
        row = (text.kind, text.name, text.sample, text.ended, one.tokens, one.parses, one.compiles)
        writer.writerow((*row, f"{one.repeated:.{SIGNIFICANT_DIGITS}g}", one.longest_shared))
    return output.getvalue()
