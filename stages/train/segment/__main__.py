"""Compute the steps between two checkpoints of a run again, and compare: `python -m stages.train.segment`.

    python -m stages.train.segment --from 400 --to 500

A long run is checked in minutes: the state at one checkpoint is loaded and trained to a later one, as it is on record
that these steps were executed. The same content there means that the checkpoint follows from the one before, bit for
bit. Exits with 0 where it does, 1 where it does not, 2 where it could not be checked. It works on the parameters and
the data of the working tree, and changes neither the run's checkpoints nor its results.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stages.formats.checkpoints import CHECKPOINTS
from stages.formats.revision.execution import TRAIN_EXECUTION
from stages.formats.revision.segment import SegmentReport, write_segment_report
from stages.runtime.entry import EXIT_USER_ERROR, UserError, run_stage
from stages.runtime.launch.config import launch_config
from stages.runtime.section import read_section
from stages.runtime.stage_code import require_locked
from stages.train.checkpoint.fingerprint import LIBRARIES
from stages.train.launch.launcher import launch
from stages.train.params import TrainParams
from stages.train.segment.plan import Segment, checkpoint_name, plan, prepare
from stages.train.segment.task import FOUND, Found, reason_of
from stages.train.segment.verdict import judge, print_verdict

WORKER = "stages.train.segment.worker"

SCRATCH = Path(".parrotflow")
KEPT: dict[str, Any] = {"checkpoints_kept": 1, "milestone_every_steps": None, "trackers": [], "export_steps": []}
"""What is kept and shown of a segment: nothing."""

EXIT_CODES = {"equal": 0, "different": 1, "cannot": EXIT_USER_ERROR}


def main() -> None:
    """Check one segment, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m stages.train.segment", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--from", type=int, required=True, dest="start", help="step of a kept checkpoint, or 0")
    parser.add_argument("--to", type=int, required=True, dest="stop", help="step of a later recorded checkpoint")
    parser.add_argument("--record", type=Path, default=TRAIN_EXECUTION, help="how the run was executed")
    parser.add_argument("--checkpoints", type=Path, help=f"the run's folder of checkpoints; default: {CHECKPOINTS}/RUN")
    parser.add_argument("--report", type=Path, help="write the verdict to this file, as JSON")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="another setting than recorded"
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    try:
        segment = plan(arguments.record, arguments.checkpoints, arguments.start, arguments.stop)
        found = recompute(segment, dict(setting.partition("=")[::2] for setting in arguments.set))
    except UserError as error:
        report = SegmentReport(
            verdict="cannot", reason=str(error), from_step=arguments.start, to_step=arguments.stop, seconds=0.0
        )
    else:
        report = judge(segment, found)
    report = report.model_copy(update={"seconds": round(time.monotonic() - began, 1)})
    print_verdict(report)
    if arguments.report:
        write_segment_report(arguments.report, report)
    sys.exit(EXIT_CODES[report.verdict])


def recompute(segment: Segment, settings: dict[str, str]) -> list[Found]:
    """Start the trainer for each piece of the segment, up to one that does not lead to what is recorded.

    `settings`: environment variables that are to be other than recorded.
    """
    require_locked(*LIBRARIES)
    params = read_section("train", TrainParams).model_copy(update=KEPT)
    start, found = segment.start, list[Found]()
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segment-", dir=SCRATCH.absolute()) as scratch:
        for piece in segment.pieces:
            task = segment.task(piece, start, Path(scratch) / str(piece.first))
            prepare(piece.session, task)
            os.environ.update(settings)
            print(f"computing the steps {piece.first + 1} to {piece.last} again", flush=True)
            code = launch(launch_config(), params.model_copy(update={"precision": piece.session.precision}), WORKER)
            if code == EXIT_USER_ERROR:
                raise UserError(reason_of(task))
            if code:
                sys.exit(code)
            found.append(Found.model_validate_json((task.scratch / FOUND).read_bytes()))
            if found[-1].contents[max(found[-1].contents)] != segment.record.checkpoints[piece.last]:
                break
            start = task.scratch / "checkpoints" / checkpoint_name(piece.last)
    return found


if __name__ == "__main__":
    run_stage(main)
