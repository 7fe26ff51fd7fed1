"""From completions to verdicts and pass@k: builds programs, judges them in parallel, and writes the report.

pass@k is the probability that at least one of k samples of a problem passes (Chen et al. 2021, arXiv:2107.03374).
"""

import hashlib
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np

from stages.evaluate.score.params import Limits, ScoreParams
from stages.evaluate.score.sandbox import LEVEL, end_all, require_isolation, run_sandboxed
from stages.formats.evaluation.generation import Completion, completions_text
from stages.formats.evaluation.intervals import FEW, RESAMPLES, SEED, ratio_interval
from stages.formats.evaluation.problems import Problem, problems_sha256
from stages.formats.evaluation.report import MIN_DOCUMENTS, score_interval
from stages.formats.evaluation.scores import Outcome, PassAtK, SampleVerdict, ScoreReport, SetScore
from stages.formats.reports import RunMetrics, significant
from stages.runtime.errors import UserError
from stages.runtime.workers import counted, worker_count


def program(problem: Problem, completion: str) -> str:
    """The program that a benchmark defines. HumanEval: prompt, completion, test and the call of `check` (Chen et al.
    2021); MBPP: completion and assertions (Austin et al. 2021). Raises UserError if it is not Python."""
    if problem.language != "python":
        raise UserError(
            f"{problem.task_id}: programs in {problem.language} cannot be run; leave its problems out, or set "
            "score.run_generated_code to false"
        )
    if problem.kind == "humaneval":
        return f"{problem.prompt}{completion}\n{problem.test}\ncheck({problem.entry_point})"
    return f"{completion}\n{problem.test}"


def judged(
    problems: Sequence[Problem], completions: Sequence[Completion], limits: Limits
) -> tuple[list[SampleVerdict], int]:
    """The verdict on each completion, in order, and the number of programs run: equal programs run once.

    Uses one worker per core, or `PARROTFLOW_WORKERS`. Raises UserError if a completion's problem is unknown, or if this
    machine cannot isolate programs.
    """
    known = {problem.task_id: problem for problem in problems}
    for completion in completions:
        if completion.task_id not in known:
            raise UserError(f"{completion.task_id}: has a completion, but is not among the problems")
    programs = [program(known[completion.task_id], completion.completion) for completion in completions]
    if not programs:
        return [], 0
    require_isolation(limits)
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(worker_count(), "judges") as threads:
        judging = {threads.submit(run_sandboxed, program, limits): program for program in dict.fromkeys(programs)}
        try:
            for done in counted(as_completed(judging), "scoring", "programs", len(judging)):
                outcomes[judging[done]] = done.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
    verdicts = [
        SampleVerdict(
            task_id=completion.task_id, sample=completion.sample, result=outcome.result, exception=outcome.exception
        )
        for completion, outcome in zip(completions, map(outcomes.__getitem__, programs), strict=True)
    ]
    return verdicts, len(outcomes)


def solutions(problems: Sequence[Problem]) -> list[Completion]:
    """Each problem's own solution, as a completion."""
    return [
        Completion(task_id=problem.task_id, sample=0, seed=0, completion=problem.solution, ended="stop")
        for problem in problems
    ]


def failures(verdicts: Iterable[SampleVerdict]) -> dict[str, str]:
    """Reasons why problems cannot be passed on this machine, by task_id, given the verdicts on their solutions.

    For example, tests that import a missing library fail every completion.
    """
    return {verdict.task_id: verdict.exception or verdict.result for verdict in verdicts if verdict.result != "passed"}


def set_name(task_id: str) -> str:
    """The set of a problem: `HumanEval` for `HumanEval/0`, `problems` for `two_sum`."""
    name, slash, _ = task_id.partition("/")
    return name if slash else "problems"


def require_enough_samples(problems: Iterable[Problem], completions: Iterable[Completion], k: Sequence[int]) -> None:
    """Raise UserError if a problem has fewer samples than the largest k."""
    counts = Counter(completion.task_id for completion in completions)
    for problem in problems:
        if counts[problem.task_id] < max(k):
            raise UserError(
                f"score.k = {list(k)}: {problem.task_id} has {counts[problem.task_id]} samples, and pass@{max(k)} "
                f"needs at least {max(k)} of each problem: generate more, or lower k"
            )


def estimate_pass_at_k(samples: int, passed: int, k: int) -> float:
    """The unbiased estimate for one problem with `samples` samples, `passed` of which pass (equation 1).

    It is 1 - C(samples - passed, k) / C(samples, k), the share of choices of k samples with at least one that passes,
    as a product that does not overflow. Requires samples >= k.
    """
    if samples - passed < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(samples - passed + 1, samples + 1)))


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> PassAtK:
    """The mean over problems, given as (samples, passed), with its interval."""
    values = np.array([estimate_pass_at_k(samples, passed, k) for samples, passed in counts])
    value = significant(float(values.mean()))
    ends = ratio_interval(values, np.ones(len(values)))
    if ends and value in (0, 1):  # none or all pass
        ends = score_interval(value, 0.0, len(values))
    return PassAtK(value=value, interval_95=ends and (max(ends[0], 0.0), min(ends[1], 1.0)))


def score_report(
    problems: Sequence[Problem],
    completions: Sequence[Completion],
    verdicts: Sequence[SampleVerdict],
    left_out: Mapping[str, str],
    programs: int,
    params: ScoreParams,
) -> ScoreReport:
    """The report of verdicts, or of completions that were not run. `left_out`: as returned by `failures`."""
    sets = sorted({set_name(completion.task_id) for completion in completions})
    ran = params.run_generated_code
    return ScoreReport(
        ran=ran,
        sets={name: _set_score(name, problems, completions, verdicts, left_out, params) for name in sets},
        samples=len(completions),
        programs=programs,
        isolation=LEVEL if ran else "none: not run",
        problems_sha256=problems_sha256(problems),
        completions_sha256=hashlib.sha256(completions_text(completions).encode()).hexdigest(),
        python=platform.python_version(),
        settings={"seed": SEED, "bootstrap_resamples": RESAMPLES, **params.limits.model_dump()},
        convention=_convention(params) if ran else "score.run_generated_code is false: the samples were only counted.",
    )


def _set_score(
    name: str,
    problems: Sequence[Problem],
    completions: Sequence[Completion],
    verdicts: Sequence[SampleVerdict],
    left_out: Mapping[str, str],
    params: ScoreParams,
) -> SetScore:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        if set_name(verdict.task_id) == name:
            counts[verdict.task_id][verdict.result] += 1
    of_set = [completion.task_id for completion in completions if set_name(completion.task_id) == name]
    per_problem = [(count.total(), count["passed"]) for task_id, count in counts.items() if task_id not in left_out]
    return SetScore(
        problems=len(set(of_set)),
        problems_sha256=problems_sha256(problem for problem in problems if set_name(problem.task_id) == name),
        samples=len(of_set),
        results=dict(sum(counts.values(), Counter())),
        left_out={task_id: why for task_id, why in left_out.items() if set_name(task_id) == name},
        pass_at_k={str(k): mean_pass_at_k(per_problem, k) for k in params.k} if per_problem else {},
    )


def _convention(params: ScoreParams) -> str:
    limits = params.limits
    return (
        "pass@k: the unbiased estimator of Chen et al. (2021), mean over the problems; intervals: 95 % over problems, "
        f"by percentile bootstrap ({RESAMPLES} draws, seed {SEED}), up to {FEW} problems by "
        f"Student's t, of fewer than {MIN_DOCUMENTS} none, exact (Clopper-Pearson) if all or none pass. A program is "
        f"the completion and its tests in one, as in the benchmark's own executor; each has {limits.cpu_seconds} s of "
        f"processor time, {limits.wall_seconds:g} s of wall-clock time and {limits.memory_megabytes} MB. Equal "
        "programs were run once, with hash seed 0 and random seed 0."
    )


def first_pass_at_k(report: ScoreReport) -> RunMetrics:
    """pass@k for the smallest k, by set if there are several; empty if nothing was run."""
    scores = {name: scored.pass_at_k for name, scored in sorted(report.sets.items()) if scored.pass_at_k}
    if not scores:
        return {}
    k = min((k for of_set in scores.values() for k in of_set), key=int)
    values = {name: of_set[k].value for name, of_set in scores.items() if k in of_set}
    return {f"pass@{k}": values if len(values) > 1 else next(iter(values.values()))}
