"""`parrotflow doctor`."""

from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from flows.project.doctor import examine_machine
from flows.run.locks import run_lock
from flows.run.outcome import AsJson

LEVEL_STYLE = {"ok": "green", "note": "yellow", "fault": "red"}


def doctor(*, cache: bool = False, free: bool = False, as_json: AsJson = False) -> dict[str, Any]:
    """Check whether this machine is ready, and say how to repair each fault. Exits with 1 if a fault stops a run.

    Parameters
    ----------
    cache
        Also read all of DVC's cache, and remove each entry that is damaged.
    free
        Also delete the checkpoints of earlier runs: all but those of the newest run, of the last finished one, and of
        the run that train.start_from names.
    """
    console, findings = Console(highlight=False, soft_wrap=True), []
    with run_lock("`parrotflow doctor`") if cache or free else nullcontext():
        for finding in examine_machine(whole_cache=cache, free=free):
            findings.append(asdict(finding))
            style = LEVEL_STYLE[finding.level]
            console.print(f"[{style}]{finding.level:>5}[/]  {finding.what}: {escape(finding.found)}")
            if finding.remedy:
                console.print(f"       → {escape(finding.remedy)}")
    return {"exit_code": int(any(one["level"] == "fault" for one in findings)), "findings": findings}
