import json
import subprocess
from pathlib import Path

import pytest
import yaml

from stages.publish.__main__ import main
from stages.publish.provenance import ancestors, lies_in

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
    Path(".gitignore").write_text(".parrotflow/\ndata/samples.*\ndata/receipt.json\npublished/\n")
    git("init", "-q")
    git("add", "params.yaml", "versions.yaml", ".gitignore")
    git("commit", "-q", "-m", "first")
    return project


def test_the_stages_that_made_the_model_stand_in_their_order_with_hashes_and_parameters(locked: Path) -> None:
    provenance = observed()

    pipeline = provenance["pipeline"]
    assert isinstance(pipeline, list)
    assert [stage["stage"] for stage in pipeline] == ["start", "tokenize", "train"]
    assert pipeline[2] == {"stage": "train"} | LOCK["stages"]["train"]  # type: ignore[index]
    assert provenance["not_in_lock"] == ["data/samples.json", "reports/train.json", "reports/evaluate.json"]


def test_every_stage_stands_after_those_it_needs_whatever_their_names() -> None:
    stages = {
        "a": {"deps": [{"path": "z/1"}], "outs": [{"path": "a"}]},
        "m": {"deps": [{"path": "a/file"}, {"path": "z"}], "outs": [{"path": "m"}]},
        "z": {"deps": [], "outs": [{"path": "z"}]},
    }

    assert [stage["stage"] for stage in ancestors(stages, ["m"])] == ["z", "a", "m"]
    assert ancestors(stages, ["elsewhere"]) == []


def test_paths_that_only_begin_alike_do_not_lie_in_each_other() -> None:
    assert lies_in("data/train/x", "data/train")
    assert lies_in("data", "data/train")
    assert not lies_in("data/training", "data/train")


def test_the_commit_is_named_and_what_the_pipeline_wrote_itself_is_no_change(locked: Path) -> None:
    Path("data/tokens/validation/extra").write_text("")

    found = observed()["git"]

    assert isinstance(found, dict)
    assert found["commit"] == git("rev-parse", "HEAD")
    assert not [path for path in found["changed"] if path.startswith(("data/tokens/", "model/", "reports/clean.json"))]
    assert "dvc.lock" not in found["changed"]
    assert "data/tokenizer/tokenizer.json" in found["changed"]  # nothing in this lock has written it


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

    versions, weights = provenance["versions"], provenance["weights_sha256"]
    assert isinstance(versions, dict)
    assert isinstance(weights, dict)
    assert versions == yaml.load(Path("versions.yaml").read_text(), Loader=yaml.BaseLoader)
    assert list(weights) == ["model.safetensors"]


def test_nothing_of_this_machines_paths_is_told(locked: Path) -> None:
    observed()

    assert str(locked) not in PROVENANCE.read_text()
    assert str(Path.home()) + "/" not in PROVENANCE.read_text()
