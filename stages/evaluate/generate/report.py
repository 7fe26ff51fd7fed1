"""The generation report: measurements of the texts, and the settings that they were generated with."""

from collections.abc import Sequence

from stages.evaluate.generate.looks import Look, mean, summed_up
from stages.evaluate.generate.params import GenerateParams, HeaderParams, ProblemParams
from stages.evaluate.generate.problem_sets import OpenSet
from stages.formats.evaluation.generation import Generation, ProblemSetReceipt, Receipts, Sample, SampleCounts
from stages.formats.evaluation.problems import problems_sha256
from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.reports import releases


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
            sampling={"headers": _settings(params.headers), "problems": _settings(params.problems)},
            versions=releases(),
        ),
    )


def _settings(params: HeaderParams | ProblemParams) -> dict[str, int | float]:
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "max_new_tokens": params.max_new_tokens,
    }
