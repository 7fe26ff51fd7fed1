"""The card's code problems: pass@k of generated programs, as a table and as entries of the Hub's model-index."""

from collections.abc import Iterator

from huggingface_hub import EvalResult

from stages.formats.evaluation.generation import Generation
from stages.formats.evaluation.verdicts import PassAtK, ScoreReport, SetScore
from stages.formats.markdown import escape, table
from stages.formats.revision.model_index import problem_set_name
from stages.publish.card.values import HUB_COMMIT, between, named

PUBLISHED = {"HumanEval": {164}, "MBPP": {974, 500, 427, 257}}
"""The sets of which others report pass@k, named as in their problems' task_id, with the number of their problems: of
MBPP all and the test split, of the whole and of the sanitized set. A file in MBPP's format has its names too."""


def code_generation(report: ScoreReport, generation: Generation) -> str:
    """A row for each set and k, how the samples were drawn and run, and what the values are not.

    Nothing where no generated program was run.
    """
    scores = list(values(report))
    if not scores:
        return ""
    rows = [
        (name, f"pass@{k}", f"{score.value:.4g}", between(score.interval_95, found.problems, ".4g"), *counts(found))
        for name, found, k, score in scores
    ]
    new_tokens = generation.receipts.sampling["problems"]["max_new_tokens"]
    sources = [(name, origin(found, generation), found.problems_sha256) for name, found in sorted(report.sets.items())]
    return (
        "## Code generation\n\n"
        f"{table(('problem set', 'metric', 'value', '95 % interval', 'problems', 'samples of each'), rows)}\n"
        f"Sampled with {drawn(generation)}, at most {new_tokens:,.0f} new tokens, seed {generation.receipts.seed}. The "
        f"programs ran with Python {report.python} in a sandbox ({escape(report.isolation)}). "
        f"{escape(report.convention)}\n\n"
        f"{table(('problem set', 'from', 'sha256 of the problems'), sources)}\n"
        f"{limits(report)}"
    )


def values(report: ScoreReport) -> Iterator[tuple[str, SetScore, int, PassAtK]]:
    """Set, its score, k and pass@k, in this order."""
    for name, found in sorted(report.sets.items()):
        for k in sorted(map(int, found.pass_at_k)):
            yield name, found, k, found.pass_at_k[str(k)]


def counts(found: SetScore) -> tuple[str, str]:
    """How many problems a set has, and how many samples each of them; the stage `generate` draws equally many."""
    return f"{found.problems:,}", f"{found.samples // found.problems:,}"


def origin(found: SetScore, generation: Generation) -> str:
    """The file or data set whose problems these are; empty where one holds several sets."""
    receipt = generation.receipts.problem_sets.get(found.problems_sha256)
    return receipt.name if receipt else ""


def is_published(name: str, found: SetScore) -> bool:
    """Whether these are a benchmark's problems, by name and number."""
    return found.problems in PUBLISHED.get(name, ())


def drawn(generation: Generation) -> str:
    """From which distribution the samples were drawn."""
    settings = generation.receipts.sampling["problems"]
    return f"temperature {settings['temperature']:g}, top-p {settings['top_p']:g}"


def limits(report: ScoreReport) -> str:
    """What the values do not say."""
    own = ", ".join(
        f"{escape(name)} ({found.problems:,} problems)"
        for name, found in sorted(report.sets.items())
        if not is_published(name, found)
    )
    notes = [
        f"Not a published benchmark: {own}. Its values compare with those of other models on the same problems only."
        if own
        else "",
        "Published values are often, for each k, the best of several temperatures; these are of one. A value over some "
        "problems of a set compares with no published one.",
        "An interval without width means that all problems had the same result, not that the value is certain."
        if any(one.interval_95 and one.interval_95[0] == one.interval_95[1] for _, _, _, one in values(report))
        else "",
        "The intervals cover the choice of problems, not the random seed of the training. Whether the training data "
        "was searched for these problems is said under Data (decontamination).",
    ]
    return "".join(f"- {note}\n" for note in notes if note)


def pass_at_k_entries(report: ScoreReport, generation: Generation) -> Iterator[EvalResult]:
    """pass@k as cards name it on the Hub; a data set of the Hub by its name and commit."""
    for name, found, k, score in values(report):
        source = origin(found, generation)
        hub = HUB_COMMIT.fullmatch(source)
        set_name = name if is_published(name, found) or not source else source
        _, samples = counts(found)
        yield EvalResult(
            task_type="text-generation",
            task_name="Code Generation",
            dataset_type=hub["repository"] if hub else set_name,
            dataset_name=problem_set_name(name, found.problems),
            dataset_revision=hub["commit"] if hub else None,
            metric_type=f"pass@{k}",
            metric_name=named(
                f"pass@{k} ({samples} samples of each problem, {drawn(generation)})", score.interval_95, found.problems
            ),
            metric_value=score.value,
        )
