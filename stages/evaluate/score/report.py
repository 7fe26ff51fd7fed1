"""The report: pass@k of each problem set, and what it depends on.

pass@k is the probability that at least one of k samples of a problem passes (Chen et al. 2021, arXiv:2107.03374).
"""

import hashlib
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from stages.evaluate.bootstrap import interval_95, resampled_sums
from stages.evaluate.score.params import ScoreParams
from stages.evaluate.score.sandbox import LEVEL
from stages.formats.evaluation.generation import Completion, completions_text
from stages.formats.evaluation.problems import Problem, problems_sha256
from stages.formats.evaluation.verdicts import PassAtK, ScoreReport, SetScore, Verdict
from stages.formats.reports import significant
from stages.runtime.entry import UserError

NOT_RUN = "none: not run"

WITHOUT_A_SET = "problems"
"""The set of all problems whose task_id names none."""


def set_name(task_id: str) -> str:
    """The set that a problem belongs to: `HumanEval` of `HumanEval/0`, `problems` of `two_sum`."""
    name, slash, _ = task_id.partition("/")
    return name if slash else WITHOUT_A_SET


def require_enough_samples(problems: Iterable[Problem], completions: Iterable[Completion], k: Sequence[int]) -> None:
    """Raise UserError that names a problem with fewer samples than a k."""
    counts = Counter(completion.task_id for completion in completions)
    for problem in problems:
        if counts[problem.task_id] < max(k):
            raise UserError(
                f"score.k = {list(k)}: {problem.task_id} has {counts[problem.task_id]} samples, and pass@{max(k)} "
                f"needs at least {max(k)} of each problem: generate more, or lower k"
            )


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The unbiased estimate from `samples` of one problem, of which `passed` pass (equation 1).

    It is 1 - C(samples - passed, k) / C(samples, k), the share of all choices of k samples that hold one that passes,
    as a product that does not overflow. Needs samples >= k.
    """
    if samples - passed < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(samples - passed + 1, samples + 1)))


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int, resamples: int, seed: int) -> PassAtK:
    """The mean over problems, given as (samples, passed), and its interval by drawing problems with replacement."""
    values = np.array([[pass_at_k(samples, passed, k)] for samples, passed in counts])
    value = significant(float(values.mean()))
    if len(values) < 2:  # a single problem is the same in each draw
        return PassAtK(value=value, interval_95=None)
    low, high = interval_95(resampled_sums(values, resamples, seed)[:, 0] / len(values))
    return PassAtK(value=value, interval_95=(significant(low), significant(high)))


def score_report(
    problems: Sequence[Problem],
    completions: Sequence[Completion],
    verdicts: Sequence[Verdict],
    programs: int,
    weights_sha256: str,
    params: ScoreParams,
) -> ScoreReport:
    """The report of verdicts, or of completions that were not run."""
    sets = sorted({set_name(completion.task_id) for completion in completions})
    ran = params.run_generated_code
    return ScoreReport(
        ran=ran,
        sets={name: _set_score(name, problems, completions, verdicts, params) for name in sets},
        samples=len(completions),
        programs=programs,
        isolation=LEVEL if ran else NOT_RUN,
        problems_sha256=problems_sha256(problems),
        completions_sha256=hashlib.sha256(completions_text(completions).encode()).hexdigest(),
        weights_sha256=weights_sha256,
        python=platform.python_version(),
        settings={"seed": params.seed, "bootstrap_resamples": params.bootstrap_resamples, **params.limits.model_dump()},
        convention=_convention(params) if ran else "score.run_generated_code is false: the samples were only counted.",
    )


def _set_score(
    name: str,
    problems: Sequence[Problem],
    completions: Sequence[Completion],
    verdicts: Sequence[Verdict],
    params: ScoreParams,
) -> SetScore:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        if set_name(verdict.task_id) == name:
            counts[verdict.task_id][verdict.result] += 1
    of_set = [completion.task_id for completion in completions if set_name(completion.task_id) == name]
    per_problem = [(count.total(), count["passed"]) for count in counts.values()]
    return SetScore(
        problems=len(set(of_set)),
        problems_sha256=problems_sha256(problem for problem in problems if set_name(problem.task_id) == name),
        samples=len(of_set),
        results=dict(sum(counts.values(), Counter())),
        pass_at_k={str(k): mean_pass_at_k(per_problem, k, params.bootstrap_resamples, params.seed) for k in params.k}
        if per_problem
        else {},
    )


def _convention(params: ScoreParams) -> str:
    limits = params.limits
    return (
        "pass@k: the unbiased estimator of Chen et al. (2021), mean over the problems; intervals: 95 % percentile "
        f"bootstrap over problems, {params.bootstrap_resamples} draws, seed {params.seed}. A program is the "
        f"completion and its tests in one, as in the benchmark's own executor; each has {limits.cpu_seconds} s of "
        f"processor time, {limits.wall_seconds:g} s of wall-clock time and {limits.memory_megabytes} MB. Equal "
        "programs were run once, with hash seed 0 and random seed 0."
    )
