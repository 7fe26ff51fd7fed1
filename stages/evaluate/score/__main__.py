"""Problems + completions -> verdicts and pass@k: `python -m stages.evaluate.score`.

It needs no model and no GPU. Generated code runs only if `score.run_generated_code` is set, in a sandbox.
`PARROTFLOW_WORKERS` is the number of programs that run at once (default: one per core).
"""

from stages.evaluate.score.params import ScoreParams
from stages.evaluate.score.scoring import (
    failures,
    first_pass_at_k,
    judged,
    require_enough_samples,
    score_report,
    solutions,
)
from stages.formats.evaluation.generation import read_completions
from stages.formats.evaluation.problems import read_written_problems
from stages.formats.evaluation.scores import SampleVerdict, write_verdicts
from stages.formats.reports import write_metrics
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage


def main() -> None:
    params = read_section("score", ScoreParams)
    problems, completions = read_written_problems(), read_completions()
    verdicts: list[SampleVerdict] = []
    left_out: dict[str, str] = {}
    programs = 0
    if params.run_generated_code:
        require_enough_samples(problems, completions, params.k)
        results, programs = judged(problems, [*completions, *solutions(problems)], params.limits)
        verdicts, left_out = results[: len(completions)], failures(results[len(completions) :])
        for task_id, why in left_out.items():
            print(f"{task_id} is left out of pass@k: its own solution does not pass here ({why})", flush=True)
    write_verdicts(verdicts)
    report = score_report(problems, completions, verdicts, left_out, programs, params)
    report.write()
    write_metrics("score", first_pass_at_k(report))


if __name__ == "__main__":
    run_stage(main)
