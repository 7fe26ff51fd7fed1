"""Small records of a revision."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.execution import Execution, Session
from stages.formats.revision.lock import DamagedError, folder_md5, read_recorded_lock
from stages.formats.revision.provenance import (
    NOT_INDEXED,
    PROVENANCE,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    Amount,
    Dependency,
    GitState,
    InputListing,
    Place,
    Provenance,
    Source,
    is_shipped,
    record_path,
    revision_name,
)
from stages.runtime.atomic import file_md5, file_sha256
from stages.runtime.stage_code import StageCode

SESSION = Session(
    first_step=1,
    last_step=3,
    device="abacus",
    device_type="cpu",
    cpu_flags=["avx2"],
    cpu_capability="AVX2",
    isa_limits={},
    processes=1,
    machines=1,
    threads_per_process=2,
    precision="fp32",
    compiled=False,
    micro_batch_size=8,
    gradient_accumulation_steps=1,
    distributed="none",
    environment={},
    launch=None,
    versions={"python": "3.11.7"},
)

INPUTS = InputListing(
    sources=[
        Source(
            name="rich",
            revision="15.0.0",
            kind="packages",
            documents=2,
            bytes=99,
            sha256="a" * 64,
            licenses={"MIT": Amount(documents=2, bytes=99)},
            places=[Place(kind="package", address="rich==15.0.0")],
        )
    ],
    dependencies=[
        Dependency(
            path="corpus",
            md5="1.dir",
            bytes=3,
            files={"corpus/a.py": "b" * 64},
            not_listed=0,
            places=[Place(kind="local")],
        )
    ],
)

GITSTATE = GitState(
    commit="d" * 40, dirty=True, changed=["a"], untracked=0, origin="https://example.com/a/b.git", on_remote=True
)


def execution(weights: str) -> Execution:
    return Execution(weights_sha256=weights, fingerprint="f", sessions=[SESSION], checkpoints={10: "c" * 64})


def write_lock(folder: Path) -> None:
    """record/dvc.lock, record/params.yaml and the stage's code: one stage has made the files that are there."""
    code = folder / record_path("code/train.json")
    code.parent.mkdir(exist_ok=True)
    code.write_text(StageCode({"stages/train/__main__.py": "a" * 32}, {"numpy": "2.4.6"}).text)
    model = {path.name: file_md5(path) for path in sorted(folder.iterdir()) if is_shipped(path.name)}
    reports = sorted((folder / "record/reports").glob("*"))
    stage = {
        "cmd": "python -m stages.train",
        "deps": [{"path": "code/train.json", "hash": "md5", "md5": file_md5(code)}],
        "params": {"params.yaml": {"train": {"max_steps": 3}}},
        "outs": [
            {"path": "model", "hash": "md5", "md5": folder_md5(model)},
            *({"path": f"reports/{path.name}", "hash": "md5", "md5": file_md5(path)} for path in reports),
        ],
    }
    (folder / RECORDED_PARAMS).write_text("train: {max_steps: 3}\npublish: {name: tiny}\n")
    YAML(typ="safe").dump({"schema": "2.0", "stages": {"train": stage}}, folder / RECORDED_LOCK)


def write_index(folder: Path, **changes: Any) -> Provenance:
    """provenance.json of the files that are there, as a forger can write it too."""
    files = {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NOT_INDEXED
    }
    try:
        lock = read_recorded_lock(folder)
    except DamagedError:
        lock = {}
    provenance = Provenance(
        revision=revision_name(files),
        files=files,
        folders={"model": {path: file_md5(folder / path) for path in files if is_shipped(path)}},
        weights_sha256=weights_sha256(folder),
        git=GITSTATE,
        pipeline=[{"stage": name} | entry for name, entry in lock.items()],
        versions={},
        not_in_lock=[],
        publish={"name": "tiny"},
        training=None,
        published_from={},
    ).model_copy(update=changes)
    provenance.write(folder / PROVENANCE)
    return provenance
