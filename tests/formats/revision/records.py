"""Small records of a revision."""

from pathlib import Path

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.execution import Execution, Session
from stages.formats.revision.inputs import Amount, Dependency, InputListing, Place, Source
from stages.formats.revision.layout import NOT_INDEXED, PROVENANCE, STATEMENT, revision_name
from stages.formats.revision.provenance import GitState, Provenance, write_provenance
from stages.formats.revision.statement import Statement, make_statement, write_statement
from stages.runtime.hashes import file_sha256

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


def write_index(folder: Path) -> Provenance:
    """provenance.json of the files that are there."""
    files = {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in NOT_INDEXED
    }
    provenance = Provenance(
        revision=revision_name(files),
        files=files,
        weights_sha256=weights_sha256(folder),
        git=GITSTATE,
        pipeline=[],
        versions={},
        not_in_lock=[],
        publish={"name": "tiny"},
        training=None,
        published_from={},
    )
    write_provenance(folder / PROVENANCE, provenance)
    return provenance


def write_attested(folder: Path) -> Statement:
    """The index, and the statement about it."""
    statement = make_statement(
        write_index(folder),
        file_sha256(folder / PROVENANCE),
        params={"train": {"max_steps": 3}},
        libraries={"torch": "2.13.0", "lm_eval": "0.4.13"},
        inputs=INPUTS,
        execution=execution(weights_sha256(folder)),
    )
    write_statement(folder / STATEMENT, statement)
    return statement
