"""What `list` and `show` say of a revision, as far as its files say it: older versions recorded less."""

from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.formats.reports import read_json
from stages.formats.revision.execution import Execution, read_execution
from stages.formats.revision.layout import EVALUATION, EXECUTION, PROVENANCE, record_path, run_name
from stages.formats.revision.provenance import Provenance, read_provenance
from stages.publish.inputs import TRAIN_REPORT
from stages.publish.registry.registry import Registry


class PublishedIntervals(BaseModel):
    """The 95 % intervals of a published evaluation that are listed."""

    model_config = ConfigDict(extra="ignore")

    bits_per_byte: tuple[float, float] | None = None


class PublishedFigures(BaseModel):
    """What is listed of a published evaluation of any version."""

    model_config = ConfigDict(extra="ignore")

    bits_per_byte: float | None = None
    interval_95: PublishedIntervals = PublishedIntervals()


class Listed(BaseModel):
    """A line of `list`."""

    revision: str
    main: bool
    """Whether main leads to it."""
    published: datetime | None
    bits_per_byte: float | None
    """Of the held-out split."""
    interval_95: tuple[float, float] | None
    parameters: int | None
    bytes: int
    """Of all its files; several revisions may share them."""
    bytes_of_its_own: int
    """That removing it makes free."""
    run: str | None
    commit: str | None
    dirty: bool | None
    """Whether files differed from the commit; None where no commit is known."""


class Shown(Listed):
    """What `show` says."""

    location: str
    files: dict[str, int]
    """File -> bytes."""
    steps: dict[int, str]
    """Exported step of the run -> its folder, or its tag on the Hub."""
    origin: str | None
    """The remote repository of the commit."""
    changed: list[str]
    """Files that differed from the commit."""
    versions: dict[str, str]
    params: dict[str, Any]
    """Of each stage that led to it, as it ran, and of the publication."""
    execution: Execution | None
    moves: list[str]
    """When main began to lead to it, and why."""


def listed(registry: Registry, name: str, main: str | None) -> Listed:
    """A revision in a line."""
    provenance, execution = provenance_of(registry, name), execution_of(registry, name)
    figures, git = figures_of(registry.file(name, EVALUATION)), provenance.git if provenance else None
    training = registry.file(name, record_path(TRAIN_REPORT))
    return Listed(
        revision=name,
        main=name == main,
        published=registry.published(name),
        bits_per_byte=figures.bits_per_byte,
        interval_95=figures.interval_95.bits_per_byte,
        parameters=read_json(training).get("parameters") if training else None,
        bytes=sum(registry.sizes(name).values()),
        bytes_of_its_own=registry.freed_by_removing(name),
        run=run_name(execution.fingerprint) if execution else None,
        commit=git.commit if git else None,
        dirty=git.dirty if git else None,
    )


def shown(registry: Registry, name: str) -> Shown:
    """A revision in full."""
    provenance = provenance_of(registry, name)
    git = provenance.git if provenance else None
    return Shown(
        **dict(listed(registry, name, registry.main())),
        location=registry.location,
        files=dict(registry.sizes(name)),
        steps=dict(registry.steps(name)),
        origin=git.origin if git else None,
        changed=git.changed if git else [],
        versions=provenance.versions if provenance else {},
        params=params_of(provenance),
        execution=execution_of(registry, name),
        moves=[f"{move.at:%Y-%m-%d %H:%M} {move.why}" for move in registry.moves() if move.to == name],
    )


def params_of(provenance: Provenance | None) -> dict[str, Any]:
    """The sections of params.yaml as the stages ran with them."""
    if provenance is None:
        return {}
    sections: dict[str, Any] = {}
    for stage in provenance.pipeline:
        sections |= stage.get("params", {}).get("params.yaml", {})
    return sections | {"publish": provenance.publish}


def provenance_of(registry: Registry, name: str) -> Provenance | None:
    """None where a revision has none of a known format."""
    path = registry.file(name, PROVENANCE)
    return read_provenance(path) if path else None


def execution_of(registry: Registry, name: str) -> Execution | None:
    """None where it is not recorded."""
    path = registry.file(name, EXECUTION)
    return read_execution(path) if path else None


def figures_of(path: Path | None) -> PublishedFigures:
    """The figures of an evaluation; without values where there is none that can be read."""
    try:
        return PublishedFigures.model_validate_json(path.read_bytes()) if path else PublishedFigures()
    except ValidationError:
        return PublishedFigures()
