"""Model + tasks of lm-evaluation-harness -> metrics and answers: `python -m stages.evaluate.harness`.

`PARROTFLOW_HARNESS_BATCH` is the number of requests that the model answers at once (default 4, on a GPU 16). It changes
time and memory, and the result only by float32 rounding.
"""

import stages.evaluate.libraries  # noqa: F401 (before torch and lm-eval)

# isort: split

from stages.evaluate.harness.params import HarnessParams
from stages.formats.evaluation.scores import HarnessReport, write_harness_samples
from stages.formats.model_folder import MODEL
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage
from stages.runtime.stage_code import require_locked


def main() -> None:
    params = read_section("harness", HarnessParams)
    # lm-eval and transformers compute with these.
    require_locked("Jinja2", "pyarrow", "sacrebleu", "scikit-learn", "tokenizers")
    if not params.tasks:
        print("harness.tasks is empty: nothing to do")
        write_harness_samples([])
        HarnessReport(harness={}, stderr={}, tasks={}, scored_with=None).write()
        return
    # lm-eval and torch take seconds to import.
    from stages.evaluate.harness.report import note_cut_requests, sample_rows, summarize
    from stages.evaluate.harness.scoring import score
    from stages.evaluate.model import note_untrained_positions

    scored = score(MODEL, params)
    note_untrained_positions(scored.lm.max_length, "lm-eval reads them all, so train longer sequences")
    write_harness_samples(sample_rows(scored))
    report = summarize(scored, params)
    note_cut_requests(report)
    report.write()


if __name__ == "__main__":
    run_stage(main)
