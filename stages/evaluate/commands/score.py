"""Score samples of a problem file: `python -m stages.evaluate.commands.score --problems HumanEval.jsonl.gz`.

Both files are in HumanEval's format (or the problems in MBPP's). Without samples the reference solutions are scored:
the sandbox has to accept them. The programs run in the sandbox of the stage `score`, with the limits
of its section of params.yaml.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from stages.evaluate.score.params import ScoreParams
from stages.evaluate.score.scoring import OUTCOMES_OF_THE_COMMAND, judged, require_enough_samples, score_report
from stages.formats.evaluation.generation import Completion
from stages.formats.evaluation.problems import Problem, read_problems
from stages.formats.evaluation.verdicts import ScoreReport, write_verdicts
from stages.formats.reports import parse_json, read_lines
from stages.runtime.entry import UserError, run_stage
from stages.runtime.section import read_section


def main() -> None:
    """Score the samples, or the reference solutions, and print the result."""
    arguments = parse_arguments()
    params = read_section("score", ScoreParams)
    params = params.model_copy(update={"run_generated_code": True, "k": arguments.k})
    problems = read_problems(arguments.problems)
    completions = read_samples(arguments.samples) if arguments.samples else reference_solutions(problems)
    require_enough_samples(problems, completions, params.k)
    verdicts, programs = judged(problems, completions, params.limits, OUTCOMES_OF_THE_COMMAND)

    what = "samples" if arguments.samples else "reference solutions"
    show(score_report(problems, completions, verdicts, {}, programs, "", params), what)
    if arguments.verdicts:
        write_verdicts(verdicts, arguments.verdicts)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="parrotflow score", description="Run the tests of a problem file on samples, in the sandbox."
    )
    parser.add_argument(
        "--problems", type=Path, required=True, help="HumanEval's or MBPP's format, .jsonl or .jsonl.gz"
    )
    parser.add_argument(
        "--samples",
        type=Path,
        help="lines of task_id and completion, .jsonl or .jsonl.gz; without: the reference solutions",
    )
    parser.add_argument("--k", type=int, nargs="+", default=[1], help="report pass@k for these k (default: 1)")
    parser.add_argument("--verdicts", type=Path, help="write the verdict on each sample to this file")
    arguments = parser.parse_args()
    if arguments.verdicts and arguments.verdicts.is_dir():
        raise UserError(f"--verdicts {arguments.verdicts}: is a folder; name a file")
    if min(arguments.k) < 1:
        raise UserError(f"--k {min(arguments.k)}: expected a whole number, 1 or more")
    return arguments


def reference_solutions(problems: Sequence[Problem]) -> list[Completion]:
    """The canonical solution of each problem as its only sample."""
    return [_completion(problem.task_id, 0, problem.solution) for problem in problems]


def read_samples(path: Path) -> list[Completion]:
    """The samples of a file in HumanEval's format, also gzipped; a number as task_id is MBPP's.

    Raises UserError that names a line that is not a sample.
    """
    counts: Counter[str] = Counter()
    samples = []
    for number, line in read_lines(path):
        try:
            row = parse_json(line)
            task_id = row["task_id"]
            if type(task_id) is int:  # MBPP's own; read_problems names its problems so
                task_id = f"MBPP/{task_id}"
            row["completion"].encode("utf-8")
            samples.append(_completion(task_id, counts[task_id], row["completion"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError):
            raise UserError(
                f'{path}: line {number}: expected {{"task_id": ..., "completion": ...}}, both texts, or a number as '
                "MBPP's task_id"
            ) from None
        counts[task_id] += 1
    return samples


def _completion(task_id: str, sample: int, completion: str) -> Completion:
    return Completion(task_id=task_id, sample=sample, seed=0, completion=completion, ended="eos")


def show(report: ScoreReport, what: str) -> None:
    """Print the score of each problem set; `what` was scored."""
    for name, score in report.sets.items():
        results = ", ".join(f"{count} {result}" for result, count in sorted(score.results.items()))
        print(f"{name}: {score.problems} problems, {score.samples} {what}: {results}")
        for k, one in score.pass_at_k.items():
            # A bootstrap over fewer problems covers far less than 95 %.
            interval = (
                " ({:.3g} to {:.3g})".format(*one.interval_95) if one.interval_95 and score.problems >= 10 else ""
            )
            print(f"  pass@{k} = {one.value:.4g}{interval}")
    print(f"{report.programs} programs, isolated by {report.isolation}. {report.convention}")


if __name__ == "__main__":
    run_stage(main)
