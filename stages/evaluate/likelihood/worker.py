"""One of several processes that score, started by `accelerate launch`; `python -m stages.evaluate` does that."""

import stages.evaluate.threads  # noqa: F401 (before torch)

# isort: split

import os
from pathlib import Path

import numpy as np

from stages.evaluate.likelihood.processes import FOLDER_VARIABLE, read_tasks, score_share, share_path, use_own_gpu
from stages.runtime.entry import UserError, run_stage
from stages.runtime.launch.supervision import follow_command, is_first_to_fail, leave


def main() -> None:
    """Score every `processes`-th batch of each task. All workers hit the same errors: the first prints them."""
    follow_command()
    folder = Path(os.environ[FOLDER_VARIABLE])
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    use_own_gpu(int(os.environ["LOCAL_RANK"]))
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    try:
        for number, losses in enumerate(score_share(read_tasks(folder), rank, processes, on_cpu)):
            np.save(share_path(folder, number, rank), losses)
    except UserError as error:
        if is_first_to_fail():
            raise
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    try:
        run_stage(main)
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else 0)
