"""A revision made by hand from a project that has run: what publish writes, without its card."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

from ruamel.yaml import YAML

from stages.formats.model_folder import MODEL
from stages.formats.reports import REPORTS
from stages.formats.revision.execution import TRAIN_EXECUTION, TRAIN_SPEED
from stages.formats.revision.provenance import (
    EXECUTION,
    PROVENANCE,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
    SOURCE_ARCHIVE,
    read_recorded_lock,
)
from stages.formats.revision.statement import GitState, Provenance
from stages.publish.source import archive_source
from stages.runtime.atomic import file_md5
from stages.runtime.stage_code import code_in
from tests.formats.revision.records import write_index

PLAIN = (RECORDED_PARAMS, RECORDED_PIPELINE, RECORDED_REQUIREMENTS)


def write_revision(project: Path, folder: Path) -> Path:
    """Write a revision of what is in the project now; publish's own stage is left out."""
    (folder / "record").mkdir(parents=True)
    for file in (project / MODEL).glob("*.*"):
        shutil.copyfile(file, folder / file.name)
    for path in PLAIN:
        shutil.copyfile(project / Path(path).name, folder / path)
    shutil.copytree(project / REPORTS, folder / "record" / REPORTS)
    for observed in (TRAIN_EXECUTION, TRAIN_SPEED):
        (folder / "record" / observed).unlink(missing_ok=True)
    if (project / TRAIN_EXECUTION).exists():
        shutil.copyfile(project / TRAIN_EXECUTION, folder / EXECUTION)
    lock = YAML(typ="safe", pure=True).load(project / "dvc.lock")
    for name in ("publish", "code"):
        lock["stages"].pop(name, None)
    if (project / "data/code").is_dir():
        shutil.copytree(project / "data/code", folder / "record/data/code")
    YAML(typ="safe").dump(lock, folder / RECORDED_LOCK)
    with contextlib.chdir(project):
        state = archive_source(read_recorded_lock(folder), folder / SOURCE_ARCHIVE, include_data=False)
    seal(folder, state)
    return folder


def pin_only(revision: Path, pins: str) -> None:
    """Let the record say that only these libraries were locked, of which no stage uses any."""
    lock = revision / RECORDED_LOCK
    (revision / RECORDED_REQUIREMENTS).write_text(pins)
    for file in (revision / "record/data/code").glob("*.json"):
        before, code = file_md5(file), code_in(file)
        assert code is not None
        file.write_text(replace(code, libraries={}).text)
        lock.write_text(lock.read_text().replace(before, file_md5(file)))


def seal(folder: Path, git: GitState | None = None) -> None:
    """Write the provenance over the files as they are now: whoever forges a file can do this too."""
    write_index(folder, git=git or Provenance.read(folder / PROVENANCE).git)
