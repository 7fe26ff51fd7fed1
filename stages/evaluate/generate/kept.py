"""Generates texts, in one process or several, so that a kill loses no finished text.

Each finished text is appended to a file in `.parrotflow/generate/KEY` at once; KEY is a hash of all that the texts
depend on. The same command reads the finished texts, drops a truncated line, and generates only the rest. The folder
is deleted when the stage's outputs are written.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.progress import track

from stages.evaluate.generator import Generated, Request, generate
from stages.evaluate.model import open_model, open_tokenizer
from stages.runtime.hashes import file_sha256
from stages.runtime.workers import worker_count

KEPT = Path(".parrotflow/generate")


@dataclass(frozen=True)
class Task:
    """Texts to generate with one model."""

    model: Path
    """The model's folder."""
    requests: Sequence[Request]
    width: int
    facts: tuple[str, ...]
    """What a request's `end` depends on."""

    @cached_property
    def folder(self) -> Path:
        """Where finished texts are kept, under a hash of everything that they depend on."""
        files = [f"{path.name} {file_sha256(path)}" for path in sorted(self.model.iterdir()) if path.is_file()]
        texts = [(request.prompt, request.seed, request.sampling) for request in self.requests]
        everything = repr((files, texts, self.width, self.facts))
        return KEPT / hashlib.sha256(everything.encode("utf-8")).hexdigest()


def written_texts(task: Task, processes: int) -> list[Generated]:
    """A text for each request, in their order: those that an earlier run finished are read, the others generated."""
    kept = _read(task.folder)
    missing = [number for number in range(len(task.requests)) if number not in kept]
    if missing and processes == 1:
        _write_share(task, missing, process=0)
    elif missing:
        shares = [missing[first::processes] for first in range(processes)]
        threads = max(1, worker_count() // processes)
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            list(pool.map(partial(_write_share, task, threads=threads), shares, range(processes)))
    texts = _read(task.folder)
    return [texts[number] for number in range(len(task.requests))]


def _read(folder: Path) -> dict[int, Generated]:
    texts: dict[int, Generated] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_bytes().split(b"\n"):
            with suppress(ValueError):  # empty, or truncated by a kill
                written = Generated(**json.loads(line))
                texts[written.request] = written
    return texts


def _write_share(task: Task, numbers: Sequence[int], process: int, threads: int | None = None) -> None:
    """Write the texts of one process."""
    if not numbers:
        return
    if threads:
        torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(process % torch.cuda.device_count())
    model, tokenizer = open_model(task.model), open_tokenizer(task.model)
    task.folder.mkdir(parents=True, exist_ok=True)
    longest = max(request.sampling.max_new_tokens for request in task.requests)
    texts = generate(model, tokenizer, [task.requests[number] for number in numbers], task.width, longest)
    with closing(texts), (task.folder / f"{process}.jsonl").open("ab") as file:
        file.write(b"\n")  # ends a line that a kill truncated
        for written in track(texts, total=len(numbers), description="sampling", disable=process > 0):
            line = asdict(written) | {"request": numbers[written.request]}
            file.write(json.dumps(line).encode("utf-8") + b"\n")
            file.flush()


def drop_kept() -> None:
    """Delete all kept texts, those of earlier settings too."""
    shutil.rmtree(KEPT, ignore_errors=True)
