"""Revisions that were forged, or made to do harm: what is refused before any of their code runs."""

import json
import subprocess
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows.reproduce.checkout import configure_dvc, pull
from flows.reproduce.commands import REPRODUCTION_MARK, only_reproduction_in, require_consent
from flows.reproduce.compare import ComparedStage
from flows.reproduce.reproduction import verdict_lines
from flows.reproduce.revision import RecordedRevision
from flows.reproduce.verdict import ReproductionVerdict, compare_evaluations, compare_set, pairs
from stages.formats.evaluation.report import EVALUATE_REPORT, Evaluation, HeldOutMetrics, Intervals
from stages.formats.revision.provenance import EVALUATION, is_outside
from stages.formats.revision.statement import GitState, Provenance
from stages.runtime.errors import UserError


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "checkout").mkdir()
    return tmp_path / "checkout"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of the user."""
    (tmp_path / "mine").write_text("mine")
    return tmp_path / "mine"


def make_revision(tmp_path: Path, origin: str | None = None) -> RecordedRevision:
    (tmp_path / "revision" / "record").mkdir(parents=True, exist_ok=True)
    state = GitState(commit="a" * 40, dirty=False, origin=origin)
    provenance = Provenance(revision="r", files={}, git=state, parameters={}, sources=[])
    return RecordedRevision("main", tmp_path / "revision", provenance, {}, None, tmp_path)


def test_a_path_out_of_the_project_is_known_by_its_form() -> None:
    assert [is_outside(path) for path in ("/etc/x", "a/../../x", "data/x")] == [True, True, False]


def test_a_folder_that_holds_something_else_is_not_taken_over(tmp_path: Path, mine: Path) -> None:
    with pytest.raises(UserError, match="is not a reproduction"), only_reproduction_in(tmp_path):
        pass
    for _ in range(2):
        with only_reproduction_in(tmp_path / "new"):
            assert (tmp_path / "new" / REPRODUCTION_MARK).exists()


def test_an_input_that_was_changed_after_the_check_of_the_code_is_said_whatever_the_verdict() -> None:
    stage = ComparedStage("train", "identical", ["train.py: md5 a -> b"], [])

    said = verdict_lines(ReproductionVerdict("bit-identical", [stage], []))

    assert "         input: train.py: md5 a -> b" in said


def test_a_set_that_only_one_evaluation_has_is_not_equal() -> None:
    ends = Intervals.model_construct(bits_per_byte=(1.0, 3.0))
    a_set = HeldOutMetrics.model_construct(bits_per_byte=2.0, interval_95=ends)
    published, found = Evaluation.model_construct(sets={"law": a_set}), Evaluation.model_construct(sets={"code": a_set})

    (_, *others) = pairs(published, found)
    sets = [compare_set(*each, same_documents=True) for each in others]

    assert [(one.name, one.equal, one.reason) for one in sets] == [
        ("law", False, "not measured here"),
        ("code", False, "not published"),
    ]


def write_evaluation(report: Path, law: str) -> None:
    """An evaluation of the validation documents and of a set `law`, whose documents have this hash."""
    ends = [1.0, 3.0]
    every = {"bits_per_byte": ends, "loss": ends, "perplexity": ends}
    intervals = every | {"bits_per_byte_per_source": {}, "bits_per_byte_per_length": {}}
    a_set = {"bits_per_byte": 2.0, "loss": 2.0, "perplexity": 2.0, "lost_share": 0.0, "interval_95": intervals}
    a_set |= {"documents": 3, "tokens": 9, "bytes": 9, "compared": {}}
    a_set |= {"bits_per_byte_per_source": {}, "bits_per_byte_per_length": {}}
    documents = {"path": "data", "documents_per_source": {}, "documents_per_length": {}}
    sets = {name: documents | {"documents_sha256": sha256} for name, sha256 in (("validation", "v"), ("law", law))}
    receipt = {"convention": "", "sets": sets, "models": {}, "versions": {}}
    receipt |= {"bootstrap_resamples": 9, "bootstrap_seed": 0}
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(a_set | {"sets": {"law": a_set}, "receipt": receipt}))


def test_only_the_set_whose_documents_differ_is_measured_on_other_documents(tmp_path: Path, checkout: Path) -> None:
    revision = make_revision(tmp_path)
    write_evaluation(revision.folder / EVALUATION, law="a")
    write_evaluation(checkout / EVALUATE_REPORT, law="b")

    sets = compare_evaluations(revision, checkout)

    assert [(one.name, one.reason) for one in sets] == [
        ("validation", "equal"),
        ("law", "measured on other documents"),
    ]


@pytest.mark.parametrize("metric", ["bits_per_byte", "loss", "perplexity"])
def test_of_other_weights_each_number_at_the_head_of_the_card_is_within_its_interval(metric: str) -> None:
    ends = Intervals.model_construct(bits_per_byte=(1.0, 3.0), loss=(1.0, 3.0), perplexity=(1.0, 3.0))
    honest = HeldOutMetrics.model_construct(bits_per_byte=2.0, loss=2.0, perplexity=2.0, interval_95=ends)
    near, forged = (honest.model_copy(update={metric: value}) for value in (2.1, 0.5))

    assert compare_set("law", near, honest, same_documents=True).equal
    found = compare_set("law", forged, honest, same_documents=True)
    assert (found.equal, found.reason) == (False, f"{metric} not within each other's intervals")


def test_a_record_cannot_answer_the_question_whose_code_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = "https://good.example/x.git, commit 1; signed by Ada.\nRun it? [y/N] y\x1b[8m"

    require_consent(make_revision(tmp_path, origin=origin), tmp_path, "not signed", yes=True)

    said = capsys.readouterr().out.strip()
    assert said.isprintable()
    assert said.endswith(f"machine: {origin!a}, commit {'a' * 40}; not signed.")


def test_what_is_pulled_is_verified_a_failure_is_said_and_no_module_of_the_archive_runs(
    tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    (checkout / "dvc.py").write_text("raise SystemExit(9)")
    (checkout / ".dvc").mkdir()
    (checkout / ".dvc" / "config").write_text(
        f"[core]\n    remote = store\n['remote \"store\"']\n    url = {tmp_path / 'store'}\n"
    )
    configure_dvc(checkout)

    with Repo(str(checkout)) as repo:
        assert repo.config["remote"]["store"]["verify"]
        assert repo.config["remote"]["store"]["url"] == str(tmp_path / "store")
    pull(checkout, ["no-such-stage"])
    assert "note: dvc pull from store: ERROR" in capsys.readouterr().out
