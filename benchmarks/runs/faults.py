"""The faults of the campaign. Each function disturbs the run of a trial, and then removes the cause."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from benchmarks.runs.broken_server import BrokenServer
from benchmarks.runs.hub_server import Fault, Hub, Repository
from benchmarks.runs.small_pipeline import LAST_LINE, REPOSITORY, Edit, hub_variables, module_text, put, remove, size
from benchmarks.runs.trial import MissedError, Process, Trial, WrongResultError, describe, kill, members
from stages.formats.revision.provenance import Receipt

UNREACHABLE = "http://127.0.0.1:9/api"
"""A Prefect server that is down: with it a run starts one of its own."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    name: str
    what: str
    """In the table of results."""
    disturb: Callable[[Trial], None]
    works: Sequence[str]
    """The work that is disturbed; one that is named twice is chosen twice as often."""


DATA = ("everything", *["tokenizer"] * 5, "document", "document")
ALL = (*DATA, *DATA, "train", "publish")


def kill_one(trial: Trial) -> None:
    """SIGKILL for one process of the run, chosen at random."""
    with_unreachable_server(trial)
    delay = trial.instant()

    def disturb(process: Process) -> None:
        trial.sleep(process, delay)
        victims = members(trial.folder)
        if not victims:
            raise MissedError
        victim = trial.chance.choice(sorted(victims, key=lambda one: one.pid))
        trial.told.append(f"{describe(victim)} of {len(victims)} processes after {delay:.2f} s")
        kill(victim)

    trial.attempt(disturb)


def kill_all(trial: Trial) -> None:
    """SIGKILL for every process of the run."""
    with_unreachable_server(trial)
    delay = trial.instant()

    def disturb(process: Process) -> None:
        trial.sleep(process, delay)
        trial.told.append(f"after {delay:.2f} s")
        kill_everything(trial)

    trial.attempt(disturb)


def kill_everything(trial: Trial) -> None:
    """As in a power failure: repeated until no process is left, also of those started meanwhile."""
    while victims := members(trial.folder):
        for victim in victims:
            kill(victim)
        time.sleep(0.01)


def with_unreachable_server(trial: Trial) -> None:
    """One run in four is to be recorded on a Prefect server that does not answer."""
    if trial.chance.random() < 0.25:
        trial.variables["PREFECT_API_URL"] = UNREACHABLE


def stop(trial: Trial) -> None:
    """SIGTERM, or Ctrl-C once or twice, for the run."""
    delay, signals = trial.instant(), trial.chance.choice([["TERM"], ["INT"], ["INT", "INT"], ["TERM", "TERM"]])
    between = trial.chance.uniform(0.05, 1.0)

    def disturb(process: Process) -> None:
        trial.sleep(process, delay)
        trial.told.append(f"SIG{' and SIG'.join(signals)} after {delay:.2f} s")
        for name in signals:
            # A terminal sends Ctrl-C to the whole group in the foreground.
            with suppress(ProcessLookupError):
                send = os.kill if name == "TERM" else os.killpg
                send(process.pid, signal.Signals[f"SIG{name}"])
            if name != signals[-1]:
                time.sleep(between)

    trial.attempt(disturb)


DATA_EDITS = (
    Edit("params.yaml", "validation_share: 0.3", "validation_share: 0.4"),
    Edit("params.yaml", "vocabulary_size: 3", "vocabulary_size: 4"),
    Edit("corpus/module_007.py", "def ", f"{LAST_LINE}\n\ndef "),
    Edit("corpus/added.py", None, module_text(1000)),
    Edit("corpus/module_011.py"),
    Edit("stages/clean/ledger.py", '"newlines": text.text.count("\\n")', '"newlines": text.text.count("\\n") + 1'),
    Edit("stages/tokenize/encode.py", "tokens[is_text] = ids", "tokens[is_text] = ids[::-1]"),
    Edit("stages/tokenizer/train.py", 'tie_break="smallest_pair_id"', 'tie_break="largest_content"'),
)
TRAIN_EDITS = (
    Edit("params.yaml", "muon_learning_rate: 0.004", "muon_learning_rate: 0.006"),
    Edit("stages/train/params.py", "(step + 1) / self", "(step + 2) / self"),
)
"""Edits that change results, so that a record of the wrong one is noticed."""


def edit(trial: Trial) -> None:
    """An input is edited while the run works; half of the time the edit is taken back while it still works."""
    change = trial.chance.choice(TRAIN_EDITS if trial.work.name == "train" else DATA_EDITS)
    delay, back_after = trial.instant(), trial.instant(0.02, 0.5)
    reverted, in_place = trial.chance.random() < 0.5, trial.chance.random() < 0.5

    def disturb(process: Process) -> None:
        trial.sleep(process, delay)
        before = change.apply(trial.folder, in_place=in_place)
        if reverted:
            with suppress(subprocess.TimeoutExpired):
                process.wait(back_after)
            put(trial.folder / change.path, before, in_place=in_place)
            trial.seen = (change,)
        else:
            trial.kept = (change,)
        back = f", back {back_after:.2f} s later" if reverted else ""
        trial.told.append(f"{change.name} after {delay:.2f} s{back}{', written in place' if in_place else ''}")

    trial.attempt(disturb)


def disk_full(trial: Trial) -> None:
    """The project is on a file system with room for only a part of what the run writes; later attempts have enough."""
    share = trial.chance.random()
    with small_disk(trial.folder) as resize:
        room = int(share * trial.undisturbed.added_bytes * 0.8)
        resize(size(trial.folder) + room)
        trial.told.append(f"room for {room / 1024:.0f} kB of {trial.undisturbed.added_bytes / 1024:.0f} kB")
        trial.attempt(lambda _: None)
        trial.wait_for_orphans()
        resize(None)
        trial.finish()


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[int | None], None]]:
    """The folder on a file system in memory; a function that sets its size in bytes, or removes the limit."""
    aside = folder.with_name(f"{folder.name}.aside")
    remove(aside)
    folder.rename(aside)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "campaign", str(folder)], check=True)

    def resize(limit: int | None) -> None:
        subprocess.run(["mount", "-o", f"remount,size={limit or 2 << 30}", str(folder)], check=True)

    try:
        subprocess.run(["cp", "-a", f"{aside}/.", str(folder)], check=True)
        remove(aside)
        yield resize
    finally:
        for one in members(folder):
            kill(one)
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def can_mount(folder: Path) -> bool:
    """Whether this process may mount a file system."""
    mount = folder / "mounted"
    mount.mkdir(parents=True, exist_ok=True)
    tried = subprocess.run(["mount", "-t", "tmpfs", "campaign", str(mount)], capture_output=True, check=False)
    return tried.returncode == 0 and subprocess.run(["umount", str(mount)], check=False).returncode == 0


def clock(trial: Trial) -> None:
    """The times of all files are years off, as after a clock that jumped, from before the run or from within it.

    The clock of a single process cannot be set, and libfaketime fails in Python's own `sleep` (0.9.10, Python 3.11).
    """
    years = trial.chance.choice([-1, 1]) * trial.chance.uniform(0.001, 10)
    delay, during = trial.instant(), trial.chance.random() < 0.5
    when = f"after {delay:.2f} s" if during else "before the run"
    trial.told.append(f"all files {years:+.2f} years, {when}")

    def touch(process: Process) -> None:
        if during:
            trial.sleep(process, delay)
            touch_all(trial.folder, time.time() + years * 365 * 86400)

    if not during:
        touch_all(trial.folder, time.time() + years * 365 * 86400)
    trial.attempt(touch)


def touch_all(folder: Path, then: float) -> None:
    """Set the times of every file of a project."""
    for file in folder.rglob("*"):
        if ".git" not in file.parts:
            with suppress(FileNotFoundError):
                os.utime(file, (then, then), follow_symlinks=False)


CACHES = {
    "restore": ".dvc/cache",
    "restore-model": ".dvc/cache",
    "restore-lock": ".dvc/cache",
    "document": ".parrotflow/cache",
    "train": ".parrotflow/checkpoints",
}
"""The caches that a run of each work reads."""


def damage(trial: Trial) -> None:
    """Files of a cache are damaged: of DVC's, of the shard cache, or the checkpoints of a training that was killed."""
    if trial.work.name == "train":
        delay = trial.instant(0.5)

        def disturb(process: Process) -> None:
            trial.sleep(process, delay)
            kill_everything(trial)

        trial.attempt(disturb)
    root = trial.folder / CACHES[trial.work.name]
    files = sorted(file for file in root.rglob("*") if file.is_file() and file.stat().st_size)
    if not files:
        raise MissedError
    for file in trial.chance.sample(files, min(len(files), trial.chance.choice([1, 2, 5, 20, len(files)]))):
        how = damage_file(file, trial)
        if len(trial.told) < 4:
            trial.told.append(f"{file.relative_to(root)} {how}")
    trial.attempt(lambda _: None)


def damage_file(file: Path, trial: Trial) -> str:
    """Damage one file. Returns how."""
    content = bytearray(file.read_bytes())
    how = trial.chance.choice(["flipped", "flipped", "flipped", "cut", "removed"])
    mode = file.stat().st_mode
    file.chmod(0o644)
    if how == "removed":
        file.unlink()
        return how
    if how == "cut":
        del content[trial.chance.randrange(len(content)) :]
    else:
        bit = trial.chance.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        how = f"bit {bit} flipped"
    file.write_bytes(content)
    file.chmod(mode)
    return how


def remote(trial: Trial) -> None:
    """A DVC remote over HTTP answers with errors, breaks off, is silent for a while, or sends damaged files."""
    store = trial.folder.with_suffix(".remote")
    remove(store)
    shutil.move(trial.folder / ".dvc/cache", store)
    remove(trial.folder / ".parrotflow/cache")
    faults = trial.chance.choice([["500"], ["503"], ["cut"], ["silence"], ["flip"], ["500", "cut", "silence", "flip"]])
    share = trial.chance.choice([0.1, 0.5, 1.0])
    with BrokenServer(store, faults, share, trial.chance) as server:
        config = trial.folder / ".dvc/config"
        config.write_text(f"[core]\n    remote = store\n['remote \"store\"']\n    url = {server.address}\n")
        trial.attempt(lambda _: None)
        trial.told.append(f"{', '.join(faults)}: {server.broken} of {server.requests} requests")
        trial.wait_for_orphans()
        server.share = 0.0
        trial.finish()
    remove(store)


HUB_REQUESTS = (".*", "POST .*/commit/", "POST .*/branch/", "POST .*/tag/", "objects/batch", "PUT ", "GET .*/tree/")
HUB_FAULTS = ("500", "503", "429", "409", "401", "lost", "cut", "portal")


def hub(trial: Trial) -> None:
    """The Hub answers with errors, loses answers, breaks off, or another commits first, while a model is published."""
    folder = trial.folder.with_suffix(".hub")
    remove(folder)
    with Hub(folder) as server:
        trial.lasting |= hub_variables(server) | {"HF_HUB_DISABLE_XET": trial.chance.choice(["1", ""])}
        for _ in range(trial.chance.choice([1, 1, 2, 4])):
            fault = Fault(
                trial.chance.choice(HUB_REQUESTS), trial.chance.choice(HUB_FAULTS), trial.chance.choice([1, 2, 20])
            )
            if trial.chance.random() < 0.1:
                fault = Fault("/commit/", "race")
            server.faults.append(fault)
            trial.told.append(f"{fault.times} x {fault.kind} at `{fault.pattern}`")
        trial.attempt(lambda _: None)
        trial.wait_for_orphans()
        server.faults.clear()
        trial.finish()
        require_published(trial, server)
    remove(folder)


def require_published(trial: Trial, server: Hub) -> None:
    """Raise WrongResultError unless tag and main hold every file of the receipt, by one commit on the tag's branch."""
    receipt = Receipt.read(trial.folder / "published/tiny/receipt.json")
    repository = server.repositories[REPOSITORY]
    branch = f"run-{receipt.run or receipt.revision}"
    titles = repository.git("log", "--format=%s", branch).decode().splitlines()
    own = [title for title in titles if title not in ("initial", "race")]
    if repository.refs("tags") != {str(receipt.revision): receipt.commit} or len(own) != 1:
        raise WrongResultError(f"tags {repository.refs('tags')}, commits on {branch}: {titles}")
    for name in (branch, "main"):
        tree = repository.tree(repository.resolve(name))
        for path, expected in receipt.sha256.items():
            if path not in tree or sha256_of(server, repository, *tree[path]) != expected:
                raise WrongResultError(f"{path} on {name} is not what the receipt says")


def sha256_of(server: Hub, repository: Repository, blob: str, size: int) -> str:
    """Of a file on the Hub."""
    large = server.lfs_info(repository, blob, size)
    return str(large["oid"]) if large else sha256(repository.read(blob)).hexdigest()


def two_runs(trial: Trial) -> None:
    """A second run, or `dvc repro`, is started in the same folder while the first one works."""
    delay = trial.instant(0.0, 0.9)
    second = trial.chance.choice(["run", "run", "run --wait", "dvc repro"])
    trial.told.append(f"`{second}` after {delay:.2f} s")
    commands = {
        "run": trial.work.command,
        "run --wait": [*trial.work.command, "--wait"],
        "dvc repro": [*trial.work.command[:2], "dvc", "repro", trial.work.target],
    }
    others: list[Process] = []

    def disturb(process: Process) -> None:
        trial.sleep(process, delay)
        others.append(trial.start(commands[second]))

    trial.attempt(disturb)
    for other in others:
        attempt = trial.wait(other)
        trial.refusals += attempt.code > 0
        attempt.require_clear(f"`{second}`")


KINDS = (
    Kind("kill-one", "kill -9 of one process of the run", kill_one, ALL),
    Kind("kill-all", "kill -9 of all processes of the run", kill_all, ALL),
    Kind("stop", "SIGTERM or Ctrl-C", stop, ALL),
    Kind("edit", "an input edited during the run", edit, ("everything",) * 5 + ("train",)),
    Kind("disk-full", "a full disk", disk_full, ALL),
    Kind("clock", "file times years off (a clock that jumps)", clock, ALL),
    Kind(
        "damage",
        "damaged cache entries and checkpoints",
        damage,
        ("restore", "restore-model", "restore-lock", "document", "document", "train"),
    ),
    Kind("remote", "a DVC remote that fails", remote, ("pull",)),
    Kind("hub", "a Hub that fails", hub, ("hub",)),
    Kind("two-runs", "two runs at once in one folder", two_runs, ALL),
)
