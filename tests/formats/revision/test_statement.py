"""The statement, read by in-toto's own package: the protobuf messages that it generates from its specification."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict, ParseError
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

from stages.formats.revision.provenance import EXECUTION, PROVENANCE
from stages.formats.revision.statement import BUILD_TYPE, Provenance
from stages.formats.revision.verify import verify_files
from stages.runtime.atomic import file_sha256
from tests.formats.revision.records import GITSTATE, SOURCE

Edit = Callable[[dict[str, Any]], object]


def read_by_in_toto(statement: dict[str, Any]) -> tuple[Any, Any]:
    """The statement and its predicate. Raises ParseError for a field that in-toto or SLSA does not have."""
    parsed = ParseDict(statement, statement_pb2.Statement())
    Statement.copy_from_pb(parsed).validate()
    return parsed, ParseDict(statement["predicate"], provenance_pb2.Provenance())


def test_in_toto_reads_the_statement_and_every_field_of_it(revision: Path) -> None:
    statement = json.loads((revision / PROVENANCE).read_bytes())

    parsed, predicate = read_by_in_toto(statement)

    assert {one.name: one.digest["sha256"] for one in parsed.subject} == {
        path: file_sha256(revision / path)
        for path in ("config.json", "model.safetensors", EXECUTION, "record/reports/train.json")
    }
    assert parsed.predicate_type == "https://slsa.dev/provenance/v1"
    assert predicate.build_definition.build_type == BUILD_TYPE
    code, documents = predicate.build_definition.resolved_dependencies
    assert code.uri == f"git+{GITSTATE.origin}@{GITSTATE.commit}"
    assert (code.digest["gitCommit"], code.annotations["dirty"]) == (GITSTATE.commit, True)
    assert (documents.name, documents.annotations["licenses"]["MIT"]["documents"]) == (SOURCE.name, 2)
    assert [one.name for one in predicate.run_details.byproducts] == [EXECUTION]


def test_in_toto_would_name_a_field_that_it_does_not_know(revision: Path) -> None:
    statement = json.loads((revision / PROVENANCE).read_bytes())
    statement["predicate"]["buildDefinition"]["commit"] = "d" * 40

    with pytest.raises(ParseError, match="commit"):
        read_by_in_toto(statement)


def test_what_is_read_is_what_was_written(revision: Path, tmp_path: Path) -> None:
    read = Provenance.read(revision / PROVENANCE)
    read.write(tmp_path / "again.json")

    assert (read.git, read.sources) == (GITSTATE, [SOURCE])
    assert (tmp_path / "again.json").read_bytes() == (revision / PROVENANCE).read_bytes()


def listed_twice(statement: dict[str, Any]) -> None:
    statement["subject"].insert(0, {"name": "config.json", "digest": {"sha256": "0" * 64}})


OTHERWISE: dict[str, Edit] = {
    "a file listed twice": listed_twice,
    "a further digest": lambda s: s["subject"][0]["digest"].update(md5="0" * 32),
    "another hash of a byproduct": lambda s: s["predicate"]["runDetails"]["byproducts"][0]["digest"].update(sha256="0"),
    "a byproduct less": lambda s: s["predicate"]["runDetails"].update(byproducts=[]),
    "another builder": lambda s: s["predicate"]["runDetails"]["builder"].update(id="https://github.com/actions"),
    "a further dependency": lambda s: s["predicate"]["buildDefinition"]["resolvedDependencies"].append({"name": "x"}),
    "another type": lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"),
    "a further field": lambda s: s.update(note="more"),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_a_statement_that_says_more_or_other_things_than_its_files_is_refused(revision: Path, what: str) -> None:
    statement = json.loads((revision / PROVENANCE).read_bytes())
    OTHERWISE[what](statement)
    (revision / PROVENANCE).write_text(json.dumps(statement))

    (fault,) = verify_files(revision)
    assert "contradicts its files, or says more" in fault or "is not a statement" in fault


@pytest.mark.parametrize("key", ["subject", "predicate"])
@pytest.mark.parametrize("value", [None, 1, [], {}, "text", [1]])
def test_what_is_no_statement_of_a_revision_is_named(revision: Path, key: str, value: object) -> None:
    statement = json.loads((revision / PROVENANCE).read_bytes())
    (revision / PROVENANCE).write_text(json.dumps(statement | {key: value}))

    assert len(verify_files(revision)) == 1
    assert Provenance.find(revision / PROVENANCE) is None
