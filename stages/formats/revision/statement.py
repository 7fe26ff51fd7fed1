"""What a revision is and how it was made, in the terms of the supply chain: `statement.json`.

An in-toto Statement (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md) whose predicate is an SLSA
provenance v1 (https://slsa.dev/spec/v1.0/provenance). Field names are those of the specifications; tools for either
read it. It repeats what provenance.json and the record say: subjects are all files of the revision, the build is the
pipeline, its dependencies are the commit, the source archive, the locked libraries and the input data.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from stages.formats.reports import write_json
from stages.formats.revision.execution import Execution
from stages.formats.revision.inputs import InputListing, Place
from stages.formats.revision.layout import PROVENANCE, SOURCE_ARCHIVE
from stages.formats.revision.provenance import Provenance

STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
SLSA_PROVENANCE: Literal["https://slsa.dev/provenance/v1"] = "https://slsa.dev/provenance/v1"

BUILD_TYPE = "urn:parrotflow:pipeline:v1"
"""Says what the parameters below mean: `dvc repro` of the recorded dvc.yaml with the recorded params.yaml."""

BUILDER = "urn:parrotflow:publish:v1"
"""The publisher's own machine: it vouches for nothing that the signature does not."""


class Spec(BaseModel):
    """Base of the specifications' objects, whose names are in camelCase. Unknown fields are allowed (parsing rules)."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, alias_generator=to_camel)


class ResourceDescriptor(Spec):
    """A file, package or repository (in-toto v1, resource_descriptor.md)."""

    name: str | None = None
    uri: str | None = None
    digest: dict[str, str] | None = None
    annotations: dict[str, Any] | None = None


class BuildDefinition(Spec):
    """What was asked for, and what went in (SLSA v1.0, BuildDefinition)."""

    build_type: str
    external_parameters: dict[str, Any]
    internal_parameters: dict[str, Any]
    resolved_dependencies: list[ResourceDescriptor]


class Builder(Spec):
    """Who ran the build (SLSA v1.0, Builder)."""

    id: str
    version: dict[str, str]


class RunDetails(Spec):
    """The run (SLSA v1.0, RunDetails). Without times: the same revision gives the same statement."""

    builder: Builder


class SlsaProvenance(Spec):
    """The predicate (SLSA v1.0, Provenance)."""

    build_definition: BuildDefinition
    run_details: RunDetails


class Statement(Spec):
    """The statement (in-toto v1, statement.md)."""

    type_: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")] = STATEMENT_TYPE
    subject: list[ResourceDescriptor]
    predicate_type: Literal["https://slsa.dev/provenance/v1"] = SLSA_PROVENANCE
    predicate: SlsaProvenance

    def sha256(self) -> dict[str, str]:
        """File of the revision -> the sha256 that the statement gives it."""
        return {str(file.name): (file.digest or {}).get("sha256", "") for file in self.subject}


def make_statement(
    provenance: Provenance,
    provenance_sha256: str,
    *,
    params: dict[str, Any],
    libraries: dict[str, str],
    inputs: InputListing,
    execution: Execution | None,
) -> Statement:
    """The statement about a revision.

    `provenance_sha256` is the hash of the index itself; `params` are the parameters that the stages ran with,
    `libraries` the locked versions.
    """
    subjects = provenance.files | {PROVENANCE: provenance_sha256}
    definition = BuildDefinition(
        build_type=BUILD_TYPE,
        external_parameters={"params": params, "publish": provenance.publish},
        internal_parameters={"execution": execution.model_dump(mode="json") if execution else None},
        resolved_dependencies=[*_code(provenance), *_libraries(libraries), *_data(inputs)],
    )
    return Statement(
        subject=[ResourceDescriptor(name=name, digest={"sha256": subjects[name]}) for name in sorted(subjects)],
        predicate=SlsaProvenance(
            build_definition=definition,
            run_details=RunDetails(builder=Builder(id=BUILDER, version=_version(libraries))),
        ),
    )


def _version(libraries: dict[str, str]) -> dict[str, str]:
    return {name: libraries[name] for name in ("dvc", "torch") if name in libraries}


def _code(provenance: Provenance) -> list[ResourceDescriptor]:
    git, source = provenance.git, provenance.source
    found = []
    if git:
        uri = f"git+{git.origin}@{git.commit}" if git.origin else None
        annotations = {"dirty": git.dirty, "folder": git.folder}
        found.append(
            ResourceDescriptor(name="commit", uri=uri, digest={"gitCommit": git.commit}, annotations=annotations)
        )
    if source:
        found.append(ResourceDescriptor(name=SOURCE_ARCHIVE, digest={"sha256": source.sha256}))
    return found


def _libraries(libraries: dict[str, str]) -> list[ResourceDescriptor]:
    """By package URL (https://github.com/package-url/purl-spec): names in lower case, with dashes."""
    return [
        ResourceDescriptor(uri=f"pkg:pypi/{name.lower().replace('_', '-')}@{version}")
        for name, version in sorted(libraries.items())
    ]


def _data(inputs: InputListing) -> list[ResourceDescriptor]:
    sources = [
        ResourceDescriptor(
            name=f"source {source.name} {source.revision}".rstrip(),
            digest={"sha256": source.sha256},
            annotations={"licenses": sorted(source.licenses), "places": _places(source.places)},
        )
        for source in inputs.sources
    ]
    files = [
        ResourceDescriptor(name=path, digest={"sha256": sha256}, annotations={"places": _places(dependency.places)})
        for dependency in inputs.dependencies
        for path, sha256 in sorted(dependency.files.items())
    ]
    return [*sources, *files]


def _places(places: list[Place]) -> list[dict[str, Any]]:
    return [place.model_dump(mode="json", exclude_none=True) for place in places]


def differing_subjects(statement: Statement, provenance: Provenance, provenance_sha256: str) -> list[str]:
    """The files of which the statement says something else than the index, or nothing, or too much."""
    said, indexed = statement.sha256(), provenance.files | {PROVENANCE: provenance_sha256}
    return sorted(path for path in said.keys() | indexed.keys() if said.get(path) != indexed.get(path))


def write_statement(path: Path, statement: Statement) -> None:
    """Write it as JSON, without the fields that have no value."""
    write_json(path, statement.model_dump(mode="json", by_alias=True, exclude_none=True))


def read_statement(path: Path) -> Statement | None:
    """Read it; None where there is none of this format."""
    try:
        return Statement.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
