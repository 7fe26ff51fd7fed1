"""Small records of a revision."""

from pathlib import Path
from typing import Any

from stages.formats.revision.execution import Execution, Session
from stages.formats.revision.provenance import (
    FORMAT,
    NOT_INDEXED,
    PROVENANCE,
    Amount,
    Dependency,
    GitState,
    InputListing,
    Place,
    Provenance,
    Source,
    revision_name,
)
from stages.runtime.atomic import file_sha256

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


def write_index(folder: Path, **changes: Any) -> Provenance:
    """provenance.json of the files that are there, as a forger can write it too."""
    files = {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NOT_INDEXED
    }
    provenance = Provenance(
        format=FORMAT, revision=revision_name(files), files=files, git=GITSTATE, source=None, left_out=[]
    ).model_copy(update=changes)
    provenance.write(folder / PROVENANCE)
    return provenance
