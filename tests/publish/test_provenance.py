import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.reports import write_json
from stages.publish.__main__ import main
from stages.publish.lock import ancestors, overlaps
from stages.runtime.hashes import file_sha256
from tests.trained_project import write_model

PROVENANCE = Path("published/tiny/main/provenance.json")

LOCK = {
    "schema": "2.0",
    "stages": {
        "train": {
            "cmd": "python -m stages.train",
            "deps": [{"path": "data/tokens/train", "hash": "md5", "md5": "1.dir", "size": 3}],
            "params": {"params.yaml": {"train": {"epsilon": 1e-05}}},
            "outs": [{"path": "model", "hash": "md5", "md5": "2.dir", "size": 4}],
        },
        "other": {"cmd": "true", "deps": [{"path": "model"}], "outs": [{"path": "data/other"}]},
        "tokenize": {"cmd": "python -m stages.tokenize", "deps": [], "outs": [{"path": "data/tokens"}]},
        "start": {"cmd": "true", "outs": [{"path": "reports/clean.json"}]},
    },
}


def git(*arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    result = subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True)
    return result.stdout.strip()


def observed() -> dict[str, object]:
    main()
    result: dict[str, object] = json.loads(PROVENANCE.read_text())
    return result


@pytest.fixture
def locked(project: Path) -> Path:
    """A repository with a lock, all committed but what the pipeline writes."""
    Path("dvc.lock").write_text(yaml.safe_dump(LOCK))
    Path(".gitignore").write_text(".parrotflow/\ndata/samples.*\npublished/\n")
    git("init", "-q")
    git("add", "params.yaml", "versions.yaml", ".gitignore")
    git("commit", "-q", "-m", "first")
    return project


def test_the_stages_that_made_the_model_are_listed_in_order_with_hashes_and_parameters(locked: Path) -> None:
    provenance = observed()

    pipeline = provenance["pipeline"]
    assert isinstance(pipeline, list)
    assert [stage["stage"] for stage in pipeline] == ["start", "tokenize", "train"]
    assert pipeline[2] == {"stage": "train"} | LOCK["stages"]["train"]  # type: ignore[index]
    assert provenance["not_in_lock"] == [
        "data/samples.json",
        "reports/train.json",
        "reports/evaluate.json",
        "reports/evaluate_receipt.json",
        "reports/generate.json",
        "reports/harness.json",
        "reports/score.json",
    ]


def test_every_stage_comes_after_those_it_depends_on_whatever_their_names() -> None:
    stages = {
        "a": {"deps": [{"path": "z/1"}], "outs": [{"path": "a"}]},
        "m": {"deps": [{"path": "a/file"}, {"path": "z"}], "outs": [{"path": "m"}]},
        "z": {"deps": [], "outs": [{"path": "z"}]},
    }

    assert [stage["stage"] for stage in ancestors(stages, ["m"])] == ["z", "a", "m"]
    assert ancestors(stages, ["elsewhere"]) == []


def test_paths_that_only_begin_alike_do_not_overlap() -> None:
    assert overlaps("data/train/x", "data/train")
    assert overlaps("data", "data/train")
    assert not overlaps("data/training", "data/train")


def test_the_commit_is_named_and_what_the_pipeline_wrote_itself_is_no_change(locked: Path) -> None:
    Path("data/tokens/validation/extra").write_text("")

    found = observed()["git"]

    assert isinstance(found, dict)
    assert found["commit"] == git("rev-parse", "HEAD")
    assert found["changed"] == []
    written = sum(path.is_file() for folder in ("model", "data/tokens") for path in Path(folder).rglob("*"))
    untracked = git("ls-files", "--others", "--exclude-standard").splitlines()
    assert found["untracked"] == len(untracked) - written - len(["reports/clean.json", "dvc.lock"])


def test_a_changed_parameter_makes_it_dirty(locked: Path) -> None:
    with Path("params.yaml").open("a") as file:
        file.write("# changed\n")

    found = observed()["git"]

    assert isinstance(found, dict)
    assert found["dirty"]
    assert "params.yaml" in found["changed"]


def test_outside_a_repository_there_is_no_commit(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))

    assert observed()["git"] is None


def test_versions_stay_text_and_weights_have_their_hash(locked: Path) -> None:
    provenance = observed()

    assert provenance["versions"] == yaml.load(Path("versions.yaml").read_text(), Loader=yaml.BaseLoader)
    assert provenance["weights_sha256"] == file_sha256(MODEL / "model.safetensors")
    files = provenance["files"]
    assert isinstance(files, dict)
    assert files == {path.name: file_sha256(path) for path in PROVENANCE.parent.iterdir() if path != PROVENANCE}


def test_no_path_of_this_machine_is_published(locked: Path) -> None:
    observed()

    assert str(locked) not in PROVENANCE.read_text()
    assert str(Path.home()) + "/" not in PROVENANCE.read_text()


def test_names_of_untracked_files_are_counted_and_never_published(locked: Path) -> None:
    before = observed()["git"]
    shutil.rmtree("published")
    Path("secret-customer.txt").write_text("")

    after = observed()["git"]

    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert after["untracked"] == before["untracked"] + 1
    assert after["dirty"]
    assert "secret-customer" not in PROVENANCE.read_text()


def test_training_facts_are_those_of_the_run_that_made_the_weights(project: Path) -> None:
    facts = {"device": "abacus", "processes": 3, "threads_per_process": 2, "compiled": False}
    write_json(Path("reports/train_speed.json"), facts | {"weights_sha256": weights_sha256()})

    assert observed()["training"] == facts
    assert "| device | abacus |" in (PROVENANCE.parent / "README.md").read_text()

    write_model(project, seed=1)  # as after a restore from the cache: the report is of another run

    assert observed()["training"] is None
    card = (PROVENANCE.parent / "README.md").read_text()
    assert "abacus" not in card
    assert "The hardware of the training is not recorded for these weights." in card
