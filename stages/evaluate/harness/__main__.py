"""Model + tasks of lm-evaluation-harness -> their metrics, and every answer: `python -m stages.evaluate.harness`.

`PARROTFLOW_HARNESS_BATCH` is the number of requests that the model answers at once (default 4, on a GPU 16): it changes
the time and the memory, and the result by float32 rounding only.
"""

import stages.evaluate.libraries  # noqa: F401 (before torch and lm-eval)

# isort: split

from contextlib import ExitStack

from stages.evaluate.harness.params import HarnessParams
from stages.formats.evaluation.harness import HarnessReport, write_harness_samples
from stages.runtime.entry import run_stage
from stages.runtime.section import read_section
from stages.runtime.stage_code import require_locked


def main() -> None:
    params = read_section("harness", HarnessParams)
    # What lm-eval and transformers compute with.
    require_locked("Jinja2", "pyarrow", "sacrebleu", "scikit-learn", "tokenizers")
    if not params.tasks:
        print("harness.tasks is empty: nothing to do")
        write_harness_samples([])
        HarnessReport(harness={}, stderr={}, interval_95={}, tasks={}, scored_with=None).write()
        return
    # lm-eval and torch take seconds to import.
    from stages.evaluate.harness.scoring import (
        note_cut_requests,
        open_language_model,
        require_room,
        sample_rows,
        score,
        summarise,
    )
    from stages.evaluate.harness.tasks import index_tasks, loaded
    from stages.evaluate.model import note_untrained_positions

    index = index_tasks(params.tasks)
    model = open_language_model()
    note_untrained_positions(model.lm.max_length, "lm-eval reads them all, so train longer sequences")
    results = []
    with ExitStack() as stack:
        # Every task is checked before the first is scored, which may take hours.
        selected = {name: stack.enter_context(loaded(name, index, params)) for name in params.tasks}
        for tasks in selected.values():
            require_room(tasks["tasks"], model.lm)
        for name, tasks in selected.items():
            results.append(score(model, tasks, params))
            print(f"scored {name}", flush=True)
    write_harness_samples(sample_rows(results))
    report = summarise(results, model, params)
    note_cut_requests(report)
    report.write()


if __name__ == "__main__":
    run_stage(main)
