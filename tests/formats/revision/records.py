"""Small records of a revision."""

from pathlib import Path
from typing import Any

from stages.formats.revision.execution import Execution, Session
from stages.formats.revision.provenance import NOT_INDEXED, PROVENANCE, RECORDED_PARAMS, revision_name
from stages.formats.revision.statement import GitState, Provenance
from stages.formats.sources import Amount, Source
from stages.runtime.atomic import file_sha256
from stages.runtime.section import read_yaml

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

GITSTATE = GitState(commit="d" * 40, dirty=True, origin="https://example.com/a/b.git")

SOURCE = Source(
    name="mine", revision="1", documents=2, bytes=7, ids="a" * 64, licenses={"MIT": Amount(documents=2, bytes=7)}
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
    params = folder / RECORDED_PARAMS
    facts = {"revision": revision_name(files), "files": files, "git": GITSTATE, "sources": [SOURCE]}
    if "parameters" not in changes:
        facts["parameters"] = read_yaml(params.read_bytes()) if params.is_file() else {}
    provenance = Provenance(**facts | changes)
    provenance.write(folder / PROVENANCE)
    return provenance
