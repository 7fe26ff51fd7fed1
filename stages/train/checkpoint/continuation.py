"""Continue a training after a change of its code: `PARROTFLOW_CONTINUE=FINGERPRINT`, that of the run so far.

Its weights then are those of no one code, so this is never done unasked. The session that does it names the earlier
run, in the record of the execution and on the card.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from stages.runtime.entry import UserError
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.fingerprint import CONTINUE, IDENTITY, changes_since
from stages.train.checkpoint.mirror import Mirror
from stages.train.distributed.agreement import on_main


def earlier_run(checkpoints: Checkpoints, run: dict[str, Any]) -> Checkpoints | None:
    """The checkpoints of the run that the variable names; None where it names none, or this one.

    Raises UserError where there is no such run here, or where more than the code differs. Every process calls this.
    """
    name = os.environ.get(CONTINUE, "")
    if name in ("", checkpoints.folder.name):
        return None
    folder = checkpoints.folder.parent / Path(name).name
    on_main(checkpoints.accelerator, lambda: _check_only_code_differs(folder, name, run))
    return Checkpoints(folder, checkpoints.accelerator, checkpoints.params, Mirror(folder.name))


def _check_only_code_differs(folder: Path, name: str, run: dict[str, Any]) -> None:
    try:
        recorded = json.loads((folder / IDENTITY).read_bytes())
        same = recorded | {"code": None} == json.loads(json.dumps(run)) | {"code": None}
    except (OSError, ValueError, TypeError):
        known = sorted(path.parent.name for path in folder.parent.glob(f"*/{IDENTITY}"))
        raise UserError(
            f"{CONTINUE}={name}: no such training in {folder.parent}; there are {', '.join(known) or 'none'}"
        ) from None
    if not same:
        raise UserError(
            f"{CONTINUE}={name}: more than the code differs from that training "
            f"({'; '.join(changes_since(folder / IDENTITY, run))}); unset it to start afresh, or undo these changes"
        )


def take_exports(earlier: Checkpoints, checkpoints: Checkpoints, step: int) -> None:
    """Copy the models of `export_steps` up to `step`: this run does not compute them. Every process calls this."""

    def copy() -> None:
        for wanted in checkpoints.params.export_steps:
            path = earlier.exported(wanted)
            if wanted <= step and path is not None:
                shutil.copytree(path, checkpoints.export_path(wanted), dirs_exist_ok=True)

    on_main(checkpoints.accelerator, copy)
