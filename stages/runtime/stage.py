"""Runs a stage: checks that its record will be correct, and turns a user's mistake into a message without a traceback.

Every `stages/NAME/__main__.py` ends with `run_stage(main)`.

DVC reads a stage's dependencies and parameters only after its command has ended, and writes them to dvc.lock
(treeverse/dvc #11058), so edits during the run would be recorded although the result does not depend on them. A stage
therefore reads the state of its inputs at the start, compares at the end, and fails if something changed: then DVC
records nothing, and the next run computes the stage again.

For a stage's code, dvc.yaml lists one file (`stages.runtime.stage_code`), and a stage starts only if it matches the
current code. Files in parameters must be listed too (`stages.runtime.preflight`).
"""

import errno
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml.error import YAMLError

from stages.runtime.atomic import FileState, file_state
from stages.runtime.code import installed
from stages.runtime.errors import (
    END_FILE,
    EXIT_BROKEN_PIPE,
    EXIT_DISK_FULL,
    EXIT_INTERRUPTED,
    EXIT_USER_ERROR,
    STATE_DIR,
    InputsChangedError,
    UserError,
    fail,
    private_state_dir,
)
from stages.runtime.preflight import DVC_FILE, check_unless_checked, listed_paths, stages_running
from stages.runtime.section import as_yaml, differences, read_yaml, value_at
from stages.runtime.stage_code import WRITER, StageCode, code_in, code_of, code_path, require_locked

STAGE_VARIABLE = "DVC_STAGE"
"""Set by DVC for a stage's command: the stage's name, with the item of a matrix (NAME@ITEM)."""

NAMED_CHANGES = 5

REMEDIES = (
    dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space")
    | dict.fromkeys((errno.EFBIG, errno.EIO), "look at the disk and at the limits of this shell (`ulimit -a`)")
    | dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "correct permissions and owner (`ls -ld`)")
)
"""errno -> remedy if a file cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The state of a stage's inputs at one moment."""

    stage: str
    module: str
    """The module that its command runs: `stages.NAME`."""
    deps: tuple[str, ...]
    params: dict[str, tuple[str, ...]]
    """File -> keys of parameters; empty: the whole file."""
    code: StageCode | None
    files: dict[str, FileState]
    """Every listed file, every file in a listed folder, and the stage's code."""
    params_text: dict[str, bytes]

    def require_recorded_code(self) -> None:
        """Raise UserError if the stage's file of code is not listed, or differs from the code."""
        if self.module == WRITER:
            return
        path = code_path(self.module)
        if path.as_posix() not in self.deps:
            raise UserError(
                f"{self.stage}: {DVC_FILE} does not list {path} among its deps, so a change of its code would go "
                "unnoticed: add it there, then run `dvc repro`"
            )
        if self.code is None:
            raise UserError(f"{self.stage}: there is no {path}: run `dvc repro`, which writes it first")
        if changes := self.code.changes_to(code_of(self.module)):
            raise UserError(
                f"{self.stage}: {path} does not match the current code ({_named(changes)}): run `dvc repro`, which "
                "updates it first"
            )
        # Skip libraries that are not installed; importing one fails anyway.
        require_locked(*(name for name in self.code.libraries if installed(name)))

    def require_unchanged(self) -> None:
        """Raise InputsChangedError, naming the changes, if inputs have changed since."""
        now = _observed(self.stage, self.module, self.deps, self.params, self.code)
        changes = [*_changed_files(self.files, now.files), *self._changed_params(now)]
        if changes:
            raise InputsChangedError(
                f"{self.stage}: inputs changed while it ran: {_named(changes)}; its result belongs to neither the old "
                "nor the new inputs and is not recorded: run the same command again to use the new ones, or restore "
                "the old ones first to keep what is computed"
            )

    def _changed_params(self, now: "Inputs") -> Iterator[str]:
        for file, keys in self.params.items():
            old_text, new_text = self.params_text[file], now.params_text[file]
            if old_text == new_text:
                continue
            try:
                old, new = (read_yaml(text) for text in (old_text, new_text))
            except YAMLError:
                yield file  # TOML, Python or broken
                continue
            if not keys:
                yield file
            for key in keys:
                for name, before, after in differences(key, value_at(old, key), value_at(new, key)):
                    yield f"{name} {as_yaml(before)} → {as_yaml(after)}"


def run_stage(main: Callable[[], None]) -> None:
    """Run `main`, and exit with a message and an exit code if it fails.

    A stage of dvc.yaml also fails if its inputs changed meanwhile, or if DVC would record other code than it runs.
    """
    if not gc.isenabled():  # see `stages/__init__.py`
        gc.freeze()
        gc.enable()
    end_file = os.environ.pop(END_FILE, None)  # child processes must not write it

    def end(message: str, code: int) -> None:
        if end_file is not None:
            with suppress(OSError):  # the disk may be full; the exit code and the printed message remain
                Path(end_file).write_text(json.dumps([code, message]), encoding="utf-8")
        fail(message, code)

    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `flows/__init__.py`
            signal.signal(signal.SIGINT, signal.default_int_handler)
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        inputs = inputs_of(spec.name.removesuffix(".__main__")) if spec is not None else None
        if DVC_FILE.is_file() or STATE_DIR.is_dir():
            private_state_dir()
        if inputs is not None:
            inputs.require_recorded_code()
            check_unless_checked()
        main()
        if inputs is not None:
            inputs.require_unchanged()
    except UserError as error:
        end(str(error), error.exit_code)
    except KeyboardInterrupt:
        end("interrupted; run the same command to continue", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader has exited (`| head`). Redirect buffered output, or Python prints an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_BROKEN_PIPE) from None
    except OSError as error:
        if error.errno not in REMEDIES or (isinstance(error, PermissionError) and not error.filename):
            raise
        where = f"{error.filename}: " if error.filename else ""
        restored = "; `dvc checkout` restores the last result" if STAGE_VARIABLE in os.environ else ""
        message = f"{where}{os.strerror(error.errno)}{restored}: {REMEDIES[error.errno]}"
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        end(f"{message}, and run the same command again", EXIT_DISK_FULL if is_full else EXIT_USER_ERROR)


def inputs_of(module: str) -> Inputs | None:
    """The inputs of the stage of dvc.yaml whose command runs a module; None if there is no such stage."""
    stages = stages_running(module)
    name = os.environ.get(STAGE_VARIABLE, "").rpartition(":")[2].partition("@")[0]
    if not name and len(stages) == 1:
        (name,) = stages
    if name not in stages:
        return None
    deps = tuple(listed_paths(stages[name], "deps"))
    params: dict[str, tuple[str, ...]] = {}
    for entry in stages[name].get("params") or []:
        for file, keys in (entry if isinstance(entry, dict) else {"params.yaml": [entry]}).items():
            params[file] = (*params.get(file, ()), *(keys or ()))
    return _observed(name, module, deps, params, code_in(code_path(module)))


def _observed(
    stage: str, module: str, deps: tuple[str, ...], params: dict[str, tuple[str, ...]], code: StageCode | None
) -> Inputs:
    read = (*deps, *(code.files if code else ()))
    files = {name: state for path in read for name, state in _states(Path(path))}
    texts = {file: Path(file).read_bytes() if Path(file).is_file() else b"" for file in params}
    return Inputs(stage, module, deps, params, code, files, texts)


def _named(changes: list[str]) -> str:
    more = f" and {len(changes) - NAMED_CHANGES} more" if len(changes) > NAMED_CHANGES else ""
    return f"{', '.join(changes[:NAMED_CHANGES])}{more}"


def _states(path: Path) -> Iterator[tuple[str, FileState]]:
    if path.is_dir():
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if name != "__pycache__"]  # as in .dvcignore
            for name in names:
                file = os.path.join(folder, name)  # noqa: PTH118 - faster for many files
                with suppress(OSError):  # deleted meanwhile
                    yield file, file_state(os.lstat(file))
    elif path.is_file():
        yield str(path), file_state(path.stat())


def _changed_files(before: dict[str, FileState], now: dict[str, FileState]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield name + ("" if name in before and name in now else " (new)" if name in now else " (gone)")
