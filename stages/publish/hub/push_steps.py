"""Pushes exported steps while training runs: `python -m stages.publish.hub.push_steps`, next to the stage `train`.

It reads what training has written and nothing else: training does not wait for it and does not know of it. It may be
killed at any instant: `publish` finds the commits that are made, and makes the others.
"""

import os
import select
from pathlib import Path

from stages.formats.model_folder import all_exports, export_path, steps_to_export
from stages.formats.revision.provenance import run_branch, run_name, step_name
from stages.publish.lock import in_temporary_workspace
from stages.publish.params import PublishParams
from stages.publish.revision import ExportedStep, read_step
from stages.runtime.entry import UnavailableError, UserError, run_stage
from stages.runtime.section import read_params_file, read_section

POLL_SECONDS = 1.0

LONGEST_WAIT_SECONDS = 600.0
"""Between two attempts where the Hub does not answer."""


def main() -> None:
    """Push each exported step once training has written it, until all are pushed or the run has ended."""
    params, training = read_section("publish", PublishParams), read_params_file()["train"]
    length = training["max_steps"]
    waiting = steps_to_export(training["export_steps"], length)
    if params.repository is None or in_temporary_workspace(Path.cwd()):
        return
    os.nice(10)
    before, wait = exports(), POLL_SECONDS
    print(f"exported steps go to {params.repository} while training runs", flush=True)
    while waiting:
        folder = run_folder(before)
        step = exported(folder, waiting[0], length) if folder else None
        if folder is None or step is None:
            if run_ends_within(POLL_SECONDS):
                return
            continue
        try:
            push(step, run_name(folder.name), params)
        except FileNotFoundError:
            return  # training has ended meanwhile; its model holds the steps
        except UnavailableError as error:
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            print(f"warning: {error}; tried again in {wait:.0f} s, and at the latest by publish", flush=True)
            if run_ends_within(wait):
                return
        else:
            waiting, wait = waiting[1:], POLL_SECONDS
            print(f"pushed {step_name(step.number)} to {params.repository}", flush=True)


def run_ends_within(seconds: float) -> bool:
    """Wait. True at once where the input ends: the run that holds its other end was killed, and asks nobody to end."""
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 1024)


def exports() -> set[tuple[Path, int]]:
    """Every exported step of every run, with the time when it was written."""
    return {(path, path.stat().st_mtime_ns) for path in all_exports()}


def run_folder(before: set[tuple[Path, int]]) -> Path | None:
    """The folder of the run that has written a step since `before`; None as long as none has."""
    return next((path.parents[1] for path, _ in exports() - before), None)


def exported(folder: Path, step: int, length: int) -> ExportedStep | None:
    """A step that this run of `length` steps has exported; None as long as it has not.

    A run of another length may have exported it: whether its weights are those of this run, publish knows in the end.
    """
    path = export_path(folder, step, length)
    try:
        return read_step(step, path) if path.is_dir() else None
    except (FileNotFoundError, UserError):
        return None  # training has ended, and its model holds the steps


def push(step: ExportedStep, run: str, params: PublishParams) -> None:
    """Commit a step to the branch of its run, unless it is there."""
    # Two seconds of imports: not before there is a step.
    from huggingface_hub.utils.tqdm import disable_progress_bars

    from stages.publish.hub.client import configure_clients, connect
    from stages.publish.hub.publication import bounded
    from stages.publish.hub.repository import Repository

    assert params.repository is not None
    configure_clients()
    disable_progress_bars()  # their numbers would be taken for those of the training
    repository = Repository(connect(params.repository), params.repository)

    def commit() -> None:
        repository.create(private=params.private)
        repository.branch_once(run_branch(run))
        repository.commit_once(run_branch(run), step.title(run), step.content)

    bounded(repository, step.content.size, commit)


if __name__ == "__main__":
    run_stage(main)
