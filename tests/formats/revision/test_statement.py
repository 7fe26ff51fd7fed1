import json
from pathlib import Path

from stages.formats.revision.layout import PROVENANCE, STATEMENT
from stages.formats.revision.provenance import read_provenance
from stages.formats.revision.statement import read_statement
from stages.runtime.hashes import file_sha256
from tests.formats.revision.records import write_attested


def test_the_statement_has_the_fields_of_in_toto_v1_and_slsa_v1(revision: Path) -> None:
    written = json.loads((revision / STATEMENT).read_text())

    # https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
    assert set(written) == {"_type", "subject", "predicateType", "predicate"}
    assert written["_type"] == "https://in-toto.io/Statement/v1"
    assert all(set(subject) == {"name", "digest"} for subject in written["subject"])
    # https://slsa.dev/spec/v1.0/provenance
    assert written["predicateType"] == "https://slsa.dev/provenance/v1"
    assert set(written["predicate"]) == {"buildDefinition", "runDetails"}
    assert set(written["predicate"]["runDetails"]["builder"]) == {"id", "version"}
    definition = written["predicate"]["buildDefinition"]
    assert set(definition) == {"buildType", "externalParameters", "internalParameters", "resolvedDependencies"}
    assert definition["externalParameters"]["params"] == {"train": {"max_steps": 3}}
    assert definition["internalParameters"]["execution"]["sessions"][0]["threads_per_process"] == 2


def test_it_names_the_commit_the_libraries_and_the_data(revision: Path) -> None:
    definition = json.loads((revision / STATEMENT).read_text())["predicate"]["buildDefinition"]
    commit, lm_eval, torch, source, file = definition["resolvedDependencies"]

    assert commit["uri"] == f"git+https://example.com/a/b.git@{'d' * 40}"
    assert (commit["digest"], commit["annotations"]["dirty"]) == ({"gitCommit": "d" * 40}, True)
    assert (lm_eval, torch) == ({"uri": "pkg:pypi/lm-eval@0.4.13"}, {"uri": "pkg:pypi/torch@2.13.0"})
    assert (source["name"], source["digest"]) == ("source rich 15.0.0", {"sha256": "a" * 64})
    assert (file["name"], file["digest"]) == ("corpus/a.py", {"sha256": "b" * 64})


def test_its_subjects_are_all_files_and_the_index(revision: Path) -> None:
    provenance, statement = read_provenance(revision / PROVENANCE), read_statement(revision / STATEMENT)

    assert provenance is not None
    assert statement is not None
    assert statement.sha256() == provenance.files | {PROVENANCE: file_sha256(revision / PROVENANCE)}


def test_the_same_revision_gives_the_same_bytes(revision: Path) -> None:
    before = (revision / STATEMENT).read_bytes()

    write_attested(revision)

    assert (revision / STATEMENT).read_bytes() == before
