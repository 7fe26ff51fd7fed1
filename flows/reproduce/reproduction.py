"""`parrotflow reproduce REV`, from the published revision to the verdict.

    WORK/revision/      a revision downloaded from the Hub; a local one is read in place
    WORK/checkout/      its code, where everything is computed
    WORK/venv/          an environment with the locked versions, if the running one has others
    WORK/prepared.json  how it was prepared; a killed reproduction continues only with the same options

WORK is `.parrotflow/reproduce/REVISION`, or the folder that the user gives. It is kept, and the same command continues.
"""

import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from flows.dvc_repo import repair_after_kill
from flows.reproduce.checkout import bring_data, check_out_revision
from flows.reproduce.commands import describe_commit, only_reproduction_in, require_consent
from flows.reproduce.environment import choose_interpreter, environment_of
from flows.reproduce.revision import RecordedRevision, check_signature, open_revision, work_folder
from flows.reproduce.verdict import ReproductionVerdict, verdict_of
from flows.run.dvc_process import run_in_group, run_repro, run_to_end
from flows.run.outcome import StoppedByUserError
from stages.formats.model_folder import CHECKPOINTS
from stages.formats.revision.provenance import EXECUTION, PROVENANCE
from stages.runtime.atomic import atomic_write, file_sha256
from stages.runtime.errors import UnavailableError, UserError


class Prepared(BaseModel):
    """How a work folder was prepared."""

    model_config = ConfigDict(frozen=True)

    index: str
    """sha256 of the revision's index."""
    from_scratch: bool
    restored: list[str]
    """Data stages whose outputs were pulled, not computed."""
    computed: list[str]
    """The stages whose inputs are available; for a segment only the training."""


def run_reproduction(
    revision: str,
    /,
    *,
    folder: Path | None = None,
    from_scratch: bool = False,
    yes: bool = False,
    key: Path | None = None,
    segment: str | None = None,
) -> int:
    """Rebuild a published revision from what it records, and say whether the result is the same.

    This runs the revision's code on this machine. It first shows where the code comes from, and asks.

    Ends with `bit-identical` or `equal within intervals` (exit code 0), or `not reproduced` (1) with the first
    difference, and how this machine differs from the record. Exit code 2: it could not start, e.g. the revision is
    damaged. With --segment: 0 if the steps lead to the recorded state, 3 if not. The same command continues after
    Ctrl-C or a kill.

    Parameters
    ----------
    revision
        A revision's folder, e.g. published/NAME/main, or owner/name@REVISION on the Hub.
    folder
        The folder to work in; the default is .parrotflow/reproduce/REVISION.
    from_scratch
        Compute the data too, instead of taking it from this project's cache or the default DVC remote.
    yes
        Run the revision's code without asking; needed if there is no terminal.
    key
        A file with the publisher's public key: the revision must be signed by it.
    segment
        Compute only the steps FROM-TO again, e.g. 0-100. FROM is 0 or the step of a checkpoint kept in this project, TO
        the step of a recorded checkpoint.
    """
    steps = None if segment is None else steps_of(segment)
    work = work_folder(revision, folder)
    with only_reproduction_in(work):
        recorded = open_revision(revision, work)
        provenance = recorded.provenance
        print_step("revision", f"{provenance.revision}: {len(provenance.files)} files, all as published")
        if steps is not None:
            require_recorded(steps, recorded)
        signature = check_signature(revision, recorded.folder, key)
        print_step("signature", signature)
        checkout = check_out_revision(recorded)
        print_step("code", f"{describe_commit(provenance.git)}; every file as the stages read it, in {checkout}")
        computed = [stage for stage in recorded.stages if steps is None or stage == recorded.training]
        restored = prepare_reproduction(recorded, checkout, computed, signature, from_scratch=from_scratch, yes=yes)
        interpreter = choose_interpreter(recorded)
        print_step("environment", f"Python {interpreter.machine.python}: {interpreter.how}")
        environment, notes = environment_of(recorded, interpreter, checkout)
        print_step("execution", "; ".join(notes) or "as recorded")
        if steps is not None:
            rerun_stages(recorded.data_stages, checkout, environment)
            return check_segment(steps, recorded, interpreter.python, checkout, environment)
        rerun_stages(computed, checkout, environment)
        verdict = verdict_of(recorded, checkout, restored)
        print("\n".join(verdict_lines(verdict)), flush=True)
        return int(verdict.result == "not reproduced")


def steps_of(segment: str) -> tuple[int, int]:
    """Parse FROM-TO. Raises UserError for another format."""
    first, _, last = segment.partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        raise UserError(f"--segment {segment}: expected FROM-TO in steps, e.g. 0-100")
    return int(first), int(last)


def print_step(step: str, text: str) -> None:
    """Print a finished step."""
    print(f"{step:<12} {text}", flush=True)


def verdict_lines(verdict: ReproductionVerdict) -> list[str]:
    """The comparison and the verdict for the terminal."""
    width = max((len(stage.name) for stage in verdict.stages), default=0)
    lines = [""]
    for stage in verdict.stages:
        lines.append(f"{stage.name:<{width}}  {stage.state}")
        lines += [f"{'':<{width}}    {difference}" for difference in stage.differences]
        lines += [f"{'':<{width}}    input: {changed}" for changed in stage.different_inputs]
    for part in verdict.sets:
        ends = f" [{part.published_interval[0]:g}, {part.published_interval[1]:g}]" if part.published_interval else ""
        numbers = f"published {part.published:g} bits per byte{ends}, found {part.found:g}"
        lines.append(f"{part.name}: {numbers}: {part.reason}")
    lines += ["", f"{verdict.result}: {verdict.explanation}"]
    if verdict.restored:
        lines.append(f"restored by hash, not recomputed: {', '.join(verdict.restored)}")
    if verdict.first is not None:
        stage, difference = verdict.first
        what = f"{stage.name}: {difference}" if difference else f"{stage.name} did not run"
        lines.append(f"first difference: {what}")
        lines += [f"differs: {fact}" for fact in verdict.facts] or ["no recorded fact of the execution differs"]
    return lines


def prepare_reproduction(
    revision: RecordedRevision, checkout: Path, computed: list[str], signature: str, *, from_scratch: bool, yes: bool
) -> list[str]:
    """Ask whether the code may run, and get the data that `computed` stages read. Returns the restored stages.

    A later start does not ask again. Raises UserError if it has other options, because it would use the results of the
    first.
    """
    prepared, index = revision.work / "prepared.json", file_sha256(revision.folder / PROVENANCE)
    before = Prepared.model_validate_json(prepared.read_bytes()) if prepared.exists() else None
    if before and (before.index, before.from_scratch) != (index, from_scratch):
        raise UserError(
            f"{revision.work}: this reproduction was started with another revision or another choice of "
            "--from-scratch; use the same ones, or choose another folder with --folder"
        )
    if before is None:
        require_consent(revision, checkout, signature, yes=yes)
    else:
        print_step("", f"already confirmed by an earlier start in {revision.work}")
    restored = before.restored if before else []
    if before is None or not {*computed} <= {*before.computed}:  # an earlier segment needed less
        computes_data = not restored if before else from_scratch  # data that was computed stays computed
        restored = bring_data(revision, checkout, computed, from_scratch=computes_data)
        now = Prepared(index=index, from_scratch=from_scratch, restored=restored, computed=computed)
        atomic_write(prepared, now.model_dump_json(indent=2) + "\n")
    print_step("data", f"restored: {', '.join(restored)}" if restored else "nothing restored; all stages are computed")
    return restored


def print_lines(lines: list[str]) -> None:
    """Print the lines of a program."""
    print("\n".join(lines), flush=True)


def rerun_stages(stages: list[str], checkout: Path, environment: Mapping[str, str]) -> None:
    """`dvc repro` the stages, if there are any, in the checkout. Raises UserError if one fails."""
    if not stages:
        return
    for repaired in repair_after_kill(checkout):
        print(repaired, flush=True)

    def on_stage(stage: str) -> None:
        print_step("running", stage)

    missing = ["--allow-missing"]
    outcome = run_to_end(run_repro("stages", stages, checkout, environment, print_lines, on_stage, options=missing))
    if outcome.result == "stopped":
        raise StoppedByUserError("stopped; run the same command to continue")
    if not outcome.good:
        error = UnavailableError if outcome.transient else UserError
        raise error(f"not all stages ran: {outcome.message}; run the same command to continue")


def require_recorded(steps: tuple[int, int], revision: RecordedRevision) -> None:
    """Raise UserError if the revision does not record the last checkpoint of a segment."""
    if revision.execution is None:
        raise UserError(f"{revision.asked}: records no checkpoints of its training; reproduce it without --segment")
    first, last = steps
    if last not in (recorded := revision.execution.checkpoints):
        known = ", ".join(map(str, sorted(recorded)))
        raise UserError(f"--segment {first}-{last}: step {last} is not recorded; choose from: {known}")


def check_segment(
    steps: tuple[int, int], revision: RecordedRevision, python: Path, checkout: Path, environment: Mapping[str, str]
) -> int:
    """Recompute the steps between two checkpoints with the checkout's checker. Returns its exit code."""
    assert revision.execution is not None  # see `require_recorded`
    checkpoints = (CHECKPOINTS / revision.execution.fingerprint).absolute()
    files = ["--record", str(revision.folder / EXECUTION), "--checkpoints", str(checkpoints)]
    first, last = map(str, steps)
    trainer = str(revision.stages[str(revision.training)]["cmd"]).split()[-1]  # the checker is a module of its package
    command = [str(python), "-m", f"{trainer}.segment", "--from", first, "--to", last, *files]
    work = partial(subprocess.call, command, stdin=subprocess.DEVNULL)
    outcome = run_to_end(run_in_group("segment", work, checkout, environment, print_lines))
    if outcome.result == "stopped":
        raise StoppedByUserError("stopped; run the same command to check the segment again")
    return outcome.exit_code
