"""`parrotflow reproduce REV`, from the published revision to the verdict.

    WORK/revision/      the revision, as fetched and checked
    WORK/checkout/      its code at the recorded commit; here everything is computed
    WORK/venv/          an environment with the locked versions, where this one has others
    WORK/prepared.json  how it was prepared: a reproduction that was killed continues only in the same way

WORK is `.parrotflow/reproduce/REVISION` unless the user names a folder. It is kept: the same command continues.
"""

import os
import shlex
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.dvc_repo.repair import repair_after_kill
from flows.reproduce.commands import Commands, only_reproduction_in, without_credentials
from flows.reproduce.compare.card import rendered_card
from flows.reproduce.compare.verdict import Verdict, judge
from flows.reproduce.prepare.checkout import check_code, check_out, write_back
from flows.reproduce.prepare.consent import require_consent
from flows.reproduce.prepare.data import keep_restored, pulled, supply_inputs
from flows.reproduce.prepare.environment import Interpreter, choose_interpreter, require_pins
from flows.reproduce.prepare.execution import environment_of
from flows.reproduce.prepare.fetch import check_signature, keep, opened, work_folder
from flows.reproduce.report import WIDTH, Story, outside_of_segment, segment_page, verdict_lines, verdict_page
from flows.reproduce.revision import Revision
from flows.reproduce.segment import (
    DIFFERENT,
    EQUAL,
    Segment,
    checkpoint_folder,
    find_segment,
    segment_command,
)
from stages.formats.revision.layout import RECORDED_REQUIREMENTS
from stages.formats.revision.segment import SegmentReport, read_segment_report
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import EXIT_UNAVAILABLE, UnavailableError, UserError

PREPARED = "prepared.json"


@dataclass(frozen=True)
class Request:
    """What a user asks for: the options of the command."""

    revision: str
    folder: Path | None = None
    source: str | None = None
    data: Path | None = None
    from_scratch: bool = False
    python: Path | None = None
    this_environment: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    token: tuple[str, ...] = ()
    """Variables of this shell, e.g. HF_TOKEN, that the revision's code and DVC get; others with secrets they do not."""
    yes: bool = False
    """Whether someone else's code may run without a question."""
    key: Path | None = None
    segment: str | None = None
    checkpoints: Path | None = None
    report: Path | None = None

    def command_line(self) -> str:
        """The command with the options that were given."""
        words = ["parrotflow", "reproduce", self.revision]
        for option in fields(self)[1:]:
            value, name = getattr(self, option.name), f"--{option.name.replace('_', '-')}"
            if option.name == "settings":
                words += [word for variable, text in value.items() for word in ("--set", f"{variable}={text}")]
            elif option.name == "token":
                words += [word for variable in value for word in (name, variable)]
            elif value is True:
                words.append(name)
            elif value:
                words += [name, str(value)]
        return without_credentials(shlex.join(words))


class Prepared(BaseModel):
    """How a work folder was prepared."""

    model_config = ConfigDict(frozen=True)

    settings: dict[str, str]
    from_scratch: bool
    python: str
    version: str = ""
    """Of Python."""
    different: dict[str, tuple[str, str]]
    """Library -> (locked version, version here), of those that differ."""
    restored: list[str]
    """Data stages whose outputs were pulled, not computed."""


def reproduce(request: Request) -> int:
    """Rebuild a revision and compare. The exit code: 0 where it was reproduced, 1 where it was not.

    Raises UserError where it cannot be tried: the revision is damaged, or something that it needs is nowhere.
    """
    began = time.monotonic()
    if request.report is not None:
        require_writable(request.report)
    if unset := [name for name in request.token if name not in os.environ]:
        raise UserError(f"--token {unset[0]}: no such variable is set in this shell")
    with ExitStack() as held:
        with opened(request.revision) as found:
            work = work_folder(request.revision, found, request.folder)
            commands = held.enter_context(only_reproduction_in(work))
            revision = keep(request.revision, found, work)
        story = Story(revision, commands)
        commands.shown.append(request.command_line())
        story.say("revision", f"{revision.name}: {len(revision.provenance.files)} files, each as published")
        signature = check_signature(request.revision, revision.folder, request.key)
        story.say("signature", signature)
        require_pins(request.revision, revision.folder / RECORDED_REQUIREMENTS)

        segment = None
        if request.segment is not None:
            checkpoints = checkpoint_folder(revision, request.checkpoints)
            segment = find_segment(revision, checkpoints, request.segment)

        checkout = check_out(revision, request.source)
        before = read_prepared(revision)
        wanted = dict[str, list[str]]()
        if before is None:  # afterwards dvc.lock is that of this reproduction, which does not say what the code was
            write_back(revision, checkout)
            wanted = check_code(revision, checkout)
        story.say("code", describe_code(revision, begun=before is not None))
        print(f"{'':<{WIDTH}} in {checkout}", flush=True)
        if before is None:  # a start that got this far had its yes
            require_consent(revision, checkout, signature, yes=request.yes)
            restored = prepare_data(request, revision, checkout, wanted, story)
        else:
            restored = before.restored
        interpreter = choose_interpreter(
            revision, checkout, commands, python=request.python, this_environment=request.this_environment
        )
        story.say("environment", f"Python {interpreter.machine.python}: {interpreter.how}")
        prepared = remember(request, revision, interpreter, before, restored)
        story.say("data", describe_data(revision, restored))

        environment, notes = environment_of(revision, interpreter, checkout, request.settings, request.token)
        story.say("execution", describe_execution(revision))
        for note in notes:
            story.note(note)

        if segment is not None:
            story.seconds = time.monotonic() - began
            return check_segment(request, segment, checkpoints, checkout, interpreter, environment, story)
        run_stages(list(revision.stages), checkout, interpreter, environment, commands)

        rendered = rendered_card(revision, checkout, interpreter.python, environment)
        verdict = judge(revision, checkout, prepared.restored, interpreter.different, notes, rendered)
        story.seconds = time.monotonic() - began
        tell(verdict, story, checkout, interpreter, request.report)
        return verdict.exit_code


def tell(verdict: Verdict, story: Story, checkout: Path, interpreter: Interpreter, report: Path | None) -> None:
    """Print the verdict, and write the page that was asked for."""
    for line in verdict_lines(verdict):
        print(line, flush=True)
    if report:
        atomic_write(report, verdict_page(story, checkout, interpreter, verdict))
        print(f"report: {report}", flush=True)


def require_writable(report: Path) -> None:
    """Raise UserError now where a page could not be written after hours."""
    there = next(folder for folder in report.absolute().parents if folder.exists())
    if report.is_dir() or not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"--report {report}: no file can be written there; name another one, e.g. report.html")


def read_prepared(revision: Revision) -> Prepared | None:
    """What an earlier start of the same command prepared; None the first time."""
    file = revision.work / PREPARED
    return Prepared.model_validate_json(file.read_bytes()) if file.exists() else None


def prepare_data(
    request: Request, revision: Revision, checkout: Path, wanted: Mapping[str, list[str]], story: Story
) -> list[str]:
    """Bring the data that can be pulled into the checkout, and of the `wanted` inputs those that are still needed.

    They are looked for before an environment is made, which takes minutes. The names of the restored stages.
    """
    restored = [] if request.from_scratch else pulled(revision, checkout, wanted, request.token)
    computed = {revision.training, *revision.data_stages} if request.segment else set(revision.stages)
    needed = [path for path, readers in wanted.items() if computed.intersection(readers).difference(restored)]
    for line in supply_inputs(revision, checkout, needed, request.data, request.token):
        story.note(line)
    lacking = {stage for path, readers in wanted.items() if path not in needed for stage in readers}
    keep_restored(revision, checkout, restored, lacking.intersection(restored))
    return restored


def remember(
    request: Request, revision: Revision, interpreter: Interpreter, before: Prepared | None, restored: list[str]
) -> Prepared:
    """Write down how the folder was prepared.

    Raises UserError where an earlier start had other options: its results would be taken for those of this one.
    """
    now = Prepared(
        settings=dict(request.settings),
        from_scratch=request.from_scratch,
        python=str(interpreter.python),
        version=interpreter.machine.python,
        different=interpreter.different,
        restored=restored,
    )
    if before is not None and before != now:
        raise UserError(
            f"{revision.work}: the reproduction there was begun with other options (--set, --from-scratch, the "
            "interpreter or its libraries): repeat those, or choose another folder with --folder"
        )
    atomic_write(revision.work / PREPARED, now.model_dump_json(indent=2) + "\n")
    return now


def run_stages(
    stages: list[str], checkout: Path, interpreter: Interpreter, environment: Mapping[str, str], commands: Commands
) -> None:
    """Run stages with the checkout's own command. Raises UserError where one fails."""
    if (checkout / "flows" / "cli.py").is_file():
        arguments = ["-m", "flows.cli", "run", "--wait", *stages]
    else:
        arguments = ["-m", "dvc", "repro", *stages]
        for repaired in repair_after_kill(checkout):
            print(repaired, flush=True)
    code = commands.run(
        [str(interpreter.python), *arguments], checkout, environment, show=shlex.join(["python", *arguments])
    )
    if code:
        raise failed(code)(
            f"the stages did not all run (exit code {code}, see above); the same command continues there"
        )


def check_segment(
    request: Request,
    segment: Segment,
    checkpoints: Path,
    checkout: Path,
    interpreter: Interpreter,
    environment: Mapping[str, str],
    story: Story,
) -> int:
    """Compute one segment of the training again; 0 where its end is the recorded one, 1 where it is not."""
    began, revision = time.monotonic(), story.revision
    if revision.data_stages:
        run_stages(revision.data_stages, checkout, interpreter, environment, story.commands)
    result = revision.work / f"segment-{segment.first}-{segment.last}.json"
    result.unlink(missing_ok=True)
    command = segment_command(revision, interpreter.python, segment, checkpoints, request.settings, result)
    code = story.commands.run(command, checkout, environment, show=shlex.join(["python", *command[1:]]))
    found = judged_segment(code, result, segment)
    story.seconds += time.monotonic() - began
    outcome = "bit-identical" if found.verdict == "equal" else "not reproduced"
    print(f"\n{outcome}: steps {segment.first} to {segment.last} of the training", flush=True)
    for one in outside_of_segment(revision):
        print(f"not compared: {one}", flush=True)
    if request.report:
        atomic_write(request.report, segment_page(story, checkout, interpreter, found))
        print(f"report: {request.report}", flush=True)
    return int(found.verdict != "equal")


def judged_segment(code: int, result: Path, segment: Segment) -> SegmentReport:
    """The verdict that the training's module wrote. Raises UserError where it ended without one: with a traceback too,
    whose exit code is that of a difference."""
    if code in (EQUAL, DIFFERENT) and result.is_file():
        with suppress(ValidationError):
            report = read_segment_report(result)
            if (report.verdict, code) in (("equal", EQUAL), ("different", DIFFERENT)):
                return report
    raise failed(code)(
        f"steps {segment.first} to {segment.last} could not be computed (exit code {code}, see above); "
        "the same command tries it again"
    )


def failed(code: int) -> type[UserError]:
    """The error of a program that ended with a code: where a service did not answer, that is passed on."""
    return UnavailableError if code == EXIT_UNAVAILABLE else UserError


def describe_code(revision: Revision, *, begun: bool) -> str:
    """Where the code is from. A continued reproduction compared it when it first started."""
    git, archive = revision.provenance.git, revision.provenance.source
    commit = "an archive of the whole project" if git is None or (archive and archive.whole) else f"commit {git.commit}"
    files = len(archive.files) + len(archive.deleted) if archive and not archive.whole else 0
    changed = f" with {files} files as they were changed" if files else ""
    when = ", checked at the first start" if begun else ""
    return f"{commit}{changed}; every file as the stages read it{when}"


def describe_execution(revision: Revision) -> str:
    """How the training was executed, on one line."""
    if revision.execution is None or not revision.execution.sessions:
        return "not recorded"
    session = revision.execution.sessions[0]
    counts = ((session.processes, "process", "es"), (session.threads_per_process, "thread", "s"))
    processes, threads = (f"{count} {noun}{plural if count > 1 else ''}" for count, noun, plural in counts)
    return f"{session.device}, {processes} of {threads}, {session.precision}, as recorded"


def describe_data(revision: Revision, restored: list[str]) -> str:
    """What is pulled, and what is computed."""
    computed = [stage for stage in revision.data_stages if stage not in restored]
    parts = [
        f"{what}: {', '.join(stages)}" for what, stages in (("restored", restored), ("computed", computed)) if stages
    ]
    return "; ".join(parts) or "nothing comes before the training"
