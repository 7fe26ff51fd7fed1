"""The real pipeline in folders of its own, small enough to run in seconds: the code, dvc.yaml and a tiny corpus.

A trial of the campaign is one piece of work (`Work`) in a copy of a project. The results of an undisturbed run of
that work are its `Reference`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from benchmarks.runs.hub_server import WRITER, Hub
from stages.formats.revision.provenance import RECEIPT, REVISIONS, is_observed
from stages.runtime.atomic import atomic_write
from stages.runtime.section import read_params_file

ROOT = Path(__file__).parents[2]

COPIED = (
    "stages filters sources held_out launch conf problems tasks dvc.yaml requirements.lock pyproject.toml "
    ".gitignore .dvcignore"
)

DOCUMENTS = 16

SOURCE = {"kind": "files", "globs": ["corpus"], "name": "mine", "revision": "1", "license": "MIT", "share": 1.0}

MODEL = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32}
MODEL |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

SMALL: dict[str, Any] = {
    "collect.sources": [SOURCE | {"max_bytes": None}],
    "collect.shard_bytes": 2000,
    "clean.filters.assignments_minimum": None,
    "clean.filters.config_or_test": None,
    "clean.filters.no_keywords_probability": None,
    "clean.near_duplicates": None,
    "clean.split": {"by": "document", "validation_sources": [], "validation_share": 0.3},
    "tokenizer.vocabulary_size": 300,
    "tokenize.parity_bytes": 10_000,
    "train.model": MODEL,
    "train.sequence_length": 16,
    "train.global_batch_size": 8,
    "train.max_steps": 20,
    "train.precision": "fp32",
    "train.schedule.warmup_steps": 2,
    "train.log_every_steps": 1,
    "train.evaluate_every_steps": 30,
    "train.evaluation_sequences": 6,
    "train.checkpoint_every_steps": 10,
    "evaluate.bootstrap_resamples": 200,
    "generate.headers": {"count": 3, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 12, "header_bytes": 60},
    "generate.problems.samples": 1,
    "generate.problems.max_new_tokens": 6,
    "harness.tasks": [],
    "score.k": [1],
    "publish.name": "tiny",
    "publish.describes": ["mine"],
    "publish.gate": {"bits_per_byte_at_most": None, "allow_worse": True, "tolerance": 0.0},
}
"""The parameters in which the small project differs from params.yaml."""

EVALUATION = ("evaluate", "score", "harness")
"""The stages that nothing but publish depends on."""

REPOSITORY = "me/tiny"

MEASURED_AGAIN = ("reports/train_speed.json",)
"""Not a result: how fast a run was."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one file."""

    path: str
    old: str | None = None
    """The text that is replaced; None: the file is written anew, or removed where `new` is None too."""
    new: str | None = None

    @property
    def name(self) -> str:
        """In one line of a report."""
        if self.new is None:
            return f"{self.path} removed"
        return f"{self.path} added" if self.old is None else f"{self.path}: {self.old.strip()} -> {self.new.strip()}"

    def apply(self, folder: Path, *, in_place: bool = False) -> bytes | None:
        """Change the file, as an editor that renames, or as one that writes `in_place`; what was there before."""
        file = folder / self.path
        before = file.read_bytes() if file.exists() else None
        if self.new is None:
            file.unlink()
            return before
        text = self.new
        if self.old is not None:
            held = (before or b"").decode()
            if self.old not in held:
                raise SystemExit(f"{self.path}: does not hold `{self.old}`: benchmarks/runs/small_pipeline.py is stale")
            text = held.replace(self.old, self.new, 1)
        put(file, text.encode(), in_place=in_place)
        return before


def put(file: Path, content: bytes | None, *, in_place: bool = False) -> None:
    """Write a file, or remove it."""
    if content is None:
        file.unlink()
    elif in_place:
        file.write_bytes(content)
    else:
        other = file.with_name(f"{file.name}~")
        other.write_bytes(content)
        other.rename(file)


@dataclass(frozen=True, slots=True)
class Work:
    """What the command of a trial has to do."""

    name: str
    base: str
    """The project that it starts from: `new` (nothing has run) or `evaluated` (all but publish is up to date)."""
    target: str
    edits: tuple[Edit, ...] = ()
    removed: tuple[str, ...] = ()
    """Outputs that are missing, so that the run restores them."""
    options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """What a user types."""
        return [sys.executable, "-m", "flows.cli", "run", *self.options, self.target]


def _parameter(old: str, new: str) -> Edit:
    return Edit("params.yaml", old, new)


LAST_LINE = "def last(value):\n    return value + 1\n"

VOCABULARY = _parameter("vocabulary_size: 300", "vocabulary_size: 310")

WORKS = {
    work.name: work
    for work in (
        Work("everything", "new", "tokenize"),
        Work("tokenizer", "evaluated", "tokenize", (VOCABULARY,)),
        Work("document", "evaluated", "tokenize", (Edit("corpus/module_003.py", "def ", f"{LAST_LINE}\n\ndef "),)),
        Work("train", "evaluated", "evaluate", (_parameter("max_steps: 20", "max_steps: 60"),)),
        Work("publish", "evaluated", "publish"),
        Work("hub", "evaluated", "publish", (_parameter("\n  repository: null", f"\n  repository: {REPOSITORY}"),)),
        Work("restore", "evaluated", "tokenize", removed=("data",)),
        Work("restore-model", "evaluated", "generate", removed=("model", "data/samples.json")),
        Work("restore-lock", "evaluated", "generate", removed=("model", "data/samples.json", "dvc.lock")),
        Work("pull", "evaluated", "tokenize", removed=("data",), options=("--pull",)),
    )
}


@dataclass(frozen=True)
class Reference:
    """An undisturbed run of some work."""

    files: dict[str, str]
    """Every file of the results -> sha256."""
    stages: dict[str, Any]
    """dvc.lock's entries."""
    seconds: float
    """How long it took."""
    starts: int
    """How many stages were started."""
    added_bytes: int
    """By how much the folder grew."""


def make_project(folder: Path) -> None:
    """Write the small project into `folder`, under git and DVC, not yet run."""
    folder.mkdir(parents=True)
    for name in COPIED.split():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copyfile(ROOT / name, folder / name)
    # How a stage is run does not count among its inputs: a campaign does not wait a minute before each retry.
    dvc_yaml = (folder / "dvc.yaml").read_text(encoding="utf-8")
    (folder / "dvc.yaml").write_text(dvc_yaml.replace("retry_delay_seconds: 60", "retry_delay_seconds: 1"))
    (folder / "params.yaml").write_text(yaml.safe_dump(small_params(), sort_keys=False), encoding="utf-8")
    (folder / "corpus").mkdir()
    for number in range(DOCUMENTS):
        (folder / "corpus" / f"module_{number:03d}.py").write_text(module_text(number), encoding="utf-8")
    for command in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"], ["git", "add", "-A"]):
        run(command, folder)
    run(["git", "-c", "user.name=c", "-c", "user.email=c@example.org", "commit", "-qm", "start"], folder)


def small_params() -> dict[str, Any]:
    """The whole of the small project's params.yaml."""
    values = read_params_file(ROOT / "params.yaml")
    for key, value in SMALL.items():
        *path, last = key.split(".")
        section = values
        for part in path:
            section = section[part]
        section[last] = value
    return values


@dataclass
class Projects:
    """Makes the projects of a campaign below one folder, each base and each reference once."""

    folder: Path
    make: Callable[[Path], None] = make_project
    """Writes the project of the base `new`."""
    _making: threading.RLock = field(default_factory=threading.RLock)

    def copy(self, work: Work, to: Path, *edits: Edit) -> None:
        """A project that is ready for a work, with further edits."""
        base = self.base(work.base)
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(base), str(to)], check=True)
        for name in work.removed:
            remove(to / name)
        for edit in (*work.edits, *edits):
            edit.apply(to)

    def base(self, name: str) -> Path:
        """The project that a base names, made once."""
        with self._making:
            made = self.folder / "bases" / name
            if not made.exists():
                partial = made.with_name(f"{name}.partial")
                remove(partial)
                if name == "new":
                    self.make(partial)
                else:
                    subprocess.run(["cp", "-a", str(self.base("new")), str(partial)], check=True)
                    run([sys.executable, "-m", "flows.cli", "run", *EVALUATION], partial)
                partial.rename(made)
            return made

    def reference(self, work: Work, *edits: Edit) -> Reference:
        """The undisturbed run of a work with further edits, made once."""
        name = sha256(repr((work, edits)).encode()).hexdigest()[:16]
        kept = self.folder / "references" / f"{name}.json"
        with self._making:
            if not kept.exists():
                reference = self._measure(work, edits)
                atomic_write(kept, json.dumps(asdict(reference)))
        return Reference(**json.loads(kept.read_text(encoding="utf-8")))

    def _measure(self, work: Work, edits: tuple[Edit, ...]) -> Reference:
        folder = self.folder / "undisturbed" / work.name
        remove(folder)
        self.copy(work, folder, *edits)
        before = size(folder)
        with surroundings(work, folder) as variables:
            began = time.monotonic()
            said = run(work.command, folder, **variables)
            seconds = time.monotonic() - began
        made = Reference(results(folder), lock_entries(folder), seconds, starts(said), size(folder) - before)
        remove(folder)
        return made


def copied_code() -> str:
    """A name for the content of what a project is made from."""
    digest = sha256(repr((SMALL, DOCUMENTS)).encode())
    for name in COPIED.split():
        for file in sorted([ROOT / name, *(ROOT / name).rglob("*")]):
            if file.is_file() and file.suffix != ".pyc":
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def module_text(number: int) -> str:
    """A small Python module, different for each number."""
    parts = [
        f"def function_{number}_{k}(value):\n    total = value + {number * k}\n    return total\n" for k in range(5)
    ]
    return "\n\n".join(parts)


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a project's commands: its own stages, this checkout's flows, one thread, no compiler."""
    values = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", "PARROTFLOW_WORKERS": "1"}
    values |= {"PARROTFLOW_COMPILE": "off", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    values |= {"HF_HOME": str(folder / ".parrotflow/hf"), "GIT_CONFIG_GLOBAL": os.devnull}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PARROTFLOW_"))}
    return kept | {"PATH": path, "DVC_NO_ANALYTICS": "1"} | values | variables


@contextmanager
def surroundings(work: Work, folder: Path) -> Iterator[dict[str, str]]:
    """Environment variables that a work needs: for `hub` those of a Hub."""
    if work.name != "hub":
        yield {}
        return
    with Hub(folder.with_suffix(".hub")) as server:
        yield hub_variables(server)
    remove(server.folder)


def hub_variables(server: Hub) -> dict[str, str]:
    """The environment variables to publish a model there."""
    values = {"HF_ENDPOINT": server.endpoint, "HF_TOKEN": WRITER, "HF_HUB_OFFLINE": ""}
    return values | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command that has to succeed; what it prints."""
    values = environment(folder, **variables)
    done = subprocess.run(
        command, cwd=folder, env=values, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout.decode()[-4000:]}")
    return done.stdout.decode(errors="replace")


def results(folder: Path) -> dict[str, str]:
    """Every file that dvc.lock names as an output, and what was published, by its sha256."""
    outs = [out["path"] for stage in lock_entries(folder).values() for out in stage.get("outs", [])]
    files = (file for out in [*outs, "published"] for file in _files(folder / out))
    found = {file.relative_to(folder).as_posix(): sha256(_content(file)).hexdigest() for file in files}
    return {name: found[name] for name in sorted(found) if name not in MEASURED_AGAIN and not _observed(name)}


def _observed(name: str) -> bool:
    """Whether a published file says how its revision was made: an attempt with an edited tree says so."""
    _, revisions, path = name.partition(f"/{REVISIONS}/")
    return bool(revisions) and is_observed(path.partition("/")[2])


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    # A half-written file that a kill left is not a result.
    yield from (file for file in path.rglob("*") if file.is_file() and ".partial" not in str(file))


def _content(file: Path) -> bytes:
    """A file's bytes; of a receipt without the commit on the Hub."""
    if file.name != RECEIPT:
        return file.read_bytes()
    return json.dumps(json.loads(file.read_bytes()) | {"commit": None}, sort_keys=True).encode()


def lock_entries(folder: Path) -> dict[str, Any]:
    """The stages of dvc.lock; of receipts not the hash."""
    lock = folder / "dvc.lock"
    stages: dict[str, Any] = (yaml.safe_load(lock.read_bytes()) or {}).get("stages", {}) if lock.exists() else {}
    for stage in stages.values():
        stage["outs"] = [
            out if not out["path"].endswith(RECEIPT) else {"path": out["path"]} for out in stage.get("outs", [])
        ]
    return stages


def starts(said: str) -> int:
    """How many stages a run has started, by what it has said."""
    return len(re.findall(r" │ started", said))


def size(folder: Path) -> int:
    """Bytes of the files below a folder, in blocks of 4 kB."""
    return sum(-(-file.lstat().st_size // 4096) * 4096 for file in folder.rglob("*"))


def remove(path: Path) -> None:
    """Remove a file or a folder, where it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
