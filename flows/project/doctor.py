"""`parrotflow doctor`: checks of this machine that no run makes, with a remedy for each fault.

`parrotflow why` reports faults of params.yaml, and what only one stage needs, such as a sandbox or a compiler.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.console import Console
from rich.markup import escape

from flows.dvc_repo import drop_damaged
from flows.environment import PREFIX, SET_BY_STAGES, VARIABLES
from flows.run.locks import run_lock
from flows.run.outcome import AsJson
from stages.formats.model_folder import CHECKPOINTS
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution
from stages.runtime.code import installed
from stages.runtime.errors import STATE_DIR, did_you_mean
from stages.runtime.hub import network_fault
from stages.runtime.section import PARAMS_FILE
from stages.runtime.stage_code import REQUIREMENTS_LOCK, pinned

NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "lustre", "beegfs", "gpfs", "ceph", "9p"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    level: Literal["ok", "note", "fault"]
    """A fault stops a run; a note limits what can be done."""
    what: str
    found: str
    remedy: str = ""
    """Empty if there is nothing to do."""


def doctor(*, cache: bool = False, free: bool = False, as_json: AsJson = False) -> dict[str, Any]:
    """Check this machine, and say how to repair each fault. Exits with 1 if one stops a run.

    For params.yaml and the stages use `parrotflow why`.

    Parameters
    ----------
    cache
        Also read all of DVC's cache, and remove each entry that is damaged.
    free
        Also delete checkpoints, except those of the newest run, the last finished run, and the run in train.start_from.
    """
    console, findings = Console(highlight=False, soft_wrap=not sys.stdout.isatty()), []
    with run_lock("`parrotflow doctor`") if cache or free else nullcontext():
        for finding in examine_machine(whole_cache=cache, free=free):
            findings.append(asdict(finding))
            style = {"ok": "green", "note": "yellow", "fault": "red"}[finding.level]
            console.print(f"[{style}]{finding.level:>5}[/]  {finding.what}: {escape(finding.found)}")
            if finding.remedy:
                console.print(f"       → {escape(finding.remedy)}")
    return {"exit_code": int(any(finding["level"] == "fault" for finding in findings)), "findings": findings}


def examine_machine(*, whole_cache: bool = False, free: bool = False) -> Iterator[Finding]:
    """Check this machine, and clean up as the options ask."""
    yield packages()
    yield git_finding()
    if whole_cache:
        yield cleaned_cache()
    if free:
        yield freed()
    yield disk()
    yield database()
    yield variables()


def packages() -> Finding:
    """Check that the installed versions match requirements.lock."""
    if not REQUIREMENTS_LOCK.exists():
        return Finding("ok", "packages", f"no {REQUIREMENTS_LOCK} here to compare with")
    pins = pinned(here=True).values()
    versions = [(name, installed(name) or "missing", wanted) for name, wanted in pins]
    wrong = [f"{name} {here} instead of {wanted}" for name, here, wanted in versions if here != wanted]
    if not wrong:
        return Finding("ok", "packages", f"all {len(pins)} as in {REQUIREMENTS_LOCK}")
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    shown = ", ".join(wrong[:3]) + more
    return Finding("fault", "packages", shown, "rm .venv/ready && make setup")


def git_finding() -> Finding:
    """Check for a repository with a committer, because experiments and provenance need commits."""
    if not shutil.which("git"):
        return Finding("fault", "git", "not found", "install git")
    inside = subprocess.run(["git", "rev-parse", "--is-inside-work-tree"], capture_output=True, text=True, check=False)
    if inside.stdout.strip() != "true":
        # If git refuses, e.g. another user's repository, its message says what to do.
        message, *rest = (inside.stderr.strip() or "no repository here").splitlines()
        remedy = " ".join(map(str.strip, rest)) or "clone the project, or run `git init` and commit"
        return Finding("note", "git", message, remedy)
    if subprocess.run(["git", "config", "user.email"], capture_output=True, check=False).returncode:
        return Finding("note", "git", "no user.email", "git config user.email YOU@EXAMPLE.ORG, to commit results")
    return Finding("ok", "git", "a repository with a committer")


def cleaned_cache() -> Finding:
    """Read the whole DVC cache and remove damaged entries."""
    if not (damaged := drop_damaged()):
        return Finding("ok", "cache", "every entry matches its hash")
    removed = f"{len(damaged)} damaged entries removed, such as {damaged[0]}"
    return Finding("note", "cache", removed, "`dvc pull` or the next run restores what is needed")


def disk() -> Finding:
    """Check for free space, and show the sizes of folders that grow."""
    free = shutil.disk_usage(Path()).free
    growing = [name for name in (".dvc/cache", ".parrotflow") if Path(name).exists()]
    sizes = [f"{name} {size_of(Path(name)) / 1e9:.1f} GB" for name in growing]
    earlier = sum(map(size_of, earlier_checkpoints())) / 1e9
    space = f"{free / 1e9:.0f} GB free; here: {', '.join(sizes)} ({earlier:.1f} GB are checkpoints of earlier runs)"
    if free >= 1e9:  # a run of the default pipeline writes 80 MB
        return Finding("ok", "disk", space)
    remedy = "`parrotflow doctor --free` deletes earlier runs' checkpoints, `dvc gc --all-commits --all-experiments` "
    return Finding("fault", "disk", space, f"{remedy}results outside commits and experiments")


def size_of(folder: Path) -> int:
    """The bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def earlier_checkpoints() -> list[Path]:
    """The folders of checkpoints except those of the newest run, the last finished one, and `start_from`."""
    runs = sorted(CHECKPOINTS.glob("*/"), key=lambda run: run.stat().st_mtime)
    finished = Execution.find(TRAIN_EXECUTION)
    kept = {CHECKPOINTS / finished.fingerprint} if finished else set()
    params = PARAMS_FILE.read_text(encoding="utf-8") if PARAMS_FILE.exists() else ""
    return [run for run in runs[:-1] if run not in kept and run.name not in params]


def freed() -> Finding:
    """Delete the checkpoints of earlier runs."""
    earlier = earlier_checkpoints()
    size = sum(map(size_of, earlier))
    for run in earlier:
        shutil.rmtree(run)
    return Finding("ok", "checkpoints", f"deleted those of {len(earlier)} earlier runs ({size / 1e9:.1f} GB)")


def database() -> Finding:
    """Check that Prefect's SQLite database is on a local file system."""
    if os.environ.get("PREFECT_API_URL") or os.environ.get("PREFECT_API_DATABASE_CONNECTION_URL"):
        return Finding("ok", "Prefect's database", "on a server")
    state = STATE_DIR.resolve()
    holding = (disk for disk in psutil.disk_partitions(all=True) if state.is_relative_to(disk.mountpoint))
    here = max(holding, key=lambda disk: len(Path(disk.mountpoint).parts), default=None)
    kind = here.fstype if here else "unknown"
    if kind not in NETWORK_FILE_SYSTEMS:
        return Finding("ok", "Prefect's database", f"in {STATE_DIR}, on {kind}")
    remedy = "set PREFECT_HOME to a local folder, or PREFECT_API_URL to a server; `dvc repro` needs neither"
    return Finding("fault", "Prefect's database", f"{STATE_DIR} is on {kind}, where SQLite loses locks", remedy)


def variables() -> Finding:
    """Check for misspelled PARROTFLOW_* variables, which would be ignored, and variables that break HTTP clients."""
    if fault := network_fault():
        return Finding("fault", "variables", *fault.split(": ", 1))
    known = {*VARIABLES, *SET_BY_STAGES}
    if unknown := sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known):
        text = f"{unknown[0]} is not a variable that parrotflow reads{did_you_mean(unknown[0], VARIABLES)}"
        return Finding("note", "variables", text, "unset it; the reference (`make docs`) lists all variables")
    names = ", ".join(sorted(VARIABLES & os.environ.keys()))
    return Finding("ok", "variables", names or "no PARROTFLOW_* is set: the defaults apply")
