"""`provenance.json`, the index of a revision, in the form that other tools read: an in-toto Statement v1 with a SLSA v1
provenance (https://github.com/in-toto/attestation/tree/main/spec, https://slsa.dev/spec/v1.0/provenance).

    subject                     every file with its sha256, without this one and the signature
    predicate
        buildDefinition
            buildType               `BUILD_TYPE`, which ends with the version of this format
            externalParameters      the values of record/params.yaml
            resolvedDependencies    git's commit, the locks and the archive of the code, each source of documents
        runDetails
            metadata                `invocationId` is the revision's name
            byproducts              how the training was executed, and how fast

A statement that says anything else is refused, also if its author signed it.
"""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ModelWrapValidatorHandler, ValidationInfo, model_serializer, model_validator

from stages.formats.reports import Report
from stages.formats.revision.provenance import (
    EXECUTION,
    PROVENANCE,
    RECORDED_LOCK,
    RECORDED_REQUIREMENTS,
    SOURCE_ARCHIVE,
    SPEED,
)
from stages.formats.sources import Source

BUILD_TYPE = "urn:parrotflow:revision:2"

BUILDER = "urn:parrotflow:publish"
"""Whoever ran `publish`: the signature says who that is."""

DOCUMENT_IDS = "sumOfIdsSha256"
"""The digest of a source of documents, `Source.ids`."""


class GitState(BaseModel, frozen=True):
    """Git's facts about the project at the time of publication. Nothing depends on them."""

    commit: str
    dirty: bool
    """Whether code, settings or inputs differed from the commit."""
    origin: str | None
    """The URL of the remote repository `origin`, without credentials; None if there is none."""


class Provenance(Report):
    """The facts that the statement is made of, and nothing else."""

    path: ClassVar[Path] = Path(PROVENANCE)
    stage: ClassVar[str] = "publish"

    revision: str
    files: dict[str, str]
    """File of the revision -> sha256, without this file and the signature."""
    git: GitState
    parameters: dict[str, Any]
    """The values of record/params.yaml."""
    sources: list[Source]
    """The documents that went in, by source."""

    @model_serializer
    def statement(self) -> dict[str, Any]:
        """The content of the file."""

        def listed(*paths: str) -> list[dict[str, Any]]:
            return [{"name": path, "digest": {"sha256": self.files[path]}} for path in paths if path in self.files]

        code: dict[str, Any] = {"digest": {"gitCommit": self.git.commit}, "annotations": {"dirty": self.git.dirty}}
        if self.git.origin is not None:  # in the form of SPDX's download locations
            code["uri"] = f"git+{self.git.origin}@{self.git.commit}"
        about = [one.model_dump() for one in self.sources]
        documents = [
            {"name": one.pop("name"), "digest": {DOCUMENT_IDS: one.pop("ids")}, "annotations": one} for one in about
        ]
        definition = {
            "buildType": BUILD_TYPE,
            "externalParameters": self.parameters,
            "resolvedDependencies": [code, *listed(RECORDED_LOCK, RECORDED_REQUIREMENTS, SOURCE_ARCHIVE), *documents],
        }
        details = {
            "builder": {"id": BUILDER},
            "metadata": {"invocationId": self.revision},
            "byproducts": listed(EXECUTION, SPEED),
        }
        return {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": listed(*sorted(self.files)),
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {"buildDefinition": definition, "runDetails": details},
        }

    @model_validator(mode="wrap")
    @classmethod
    def _facts(cls, given: Any, handler: ModelWrapValidatorHandler["Provenance"], info: ValidationInfo) -> "Provenance":
        if info.mode != "json":
            return handler(given)
        try:
            if given.get("format") == 1:
                raise ValueError(
                    "is of format 1, which versions of parrotflow before 0.1.0 read, such as its own commit "
                    f"{given['git']['commit']}"
                )
            definition = given["predicate"]["buildDefinition"]
            if definition["buildType"] != BUILD_TYPE:
                raise ValueError(
                    f"is of the format {definition['buildType']}, and this version of parrotflow reads {BUILD_TYPE}"
                )
            code, dependencies = definition["resolvedDependencies"][0], definition["resolvedDependencies"][1:]
            commit = code["digest"]["gitCommit"]
            origin = code["uri"].removeprefix("git+").removesuffix(f"@{commit}") if "uri" in code else None
            facts = {
                "revision": given["predicate"]["runDetails"]["metadata"]["invocationId"],
                "files": {one["name"]: one["digest"]["sha256"] for one in given["subject"]},
                "git": {"commit": commit, "dirty": code["annotations"]["dirty"], "origin": origin},
                "parameters": definition["externalParameters"],
                "sources": [
                    {"name": one["name"], "ids": one["digest"][DOCUMENT_IDS], **one["annotations"]}
                    for one in dependencies
                    if DOCUMENT_IDS in one["digest"]
                ],
            }
        except (LookupError, TypeError, AttributeError):
            raise ValueError("is not a statement of a revision (in-toto v1, SLSA v1)") from None
        found = handler(facts)
        if found.statement() != given:
            raise ValueError("contradicts its files, or says more than they do")
        return found
