"""The data set in a repository of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stages.formats.documents import read_documents
from tests.fake_hub import Fault, Hub
from tests.publish.test_hub import NAME, environment, published
from tests.trained_project import write_sections

DATA = "me/data"


@pytest.fixture(autouse=True)
def repositories_named(project: Path) -> None:
    write_sections(project, publish__repository=NAME, publish__dataset_repository=DATA)


def test_the_data_set_loads_with_its_splits(project: Path, hub: Hub) -> None:
    receipt = published(hub)

    assert set(receipt["others"]) == {f"datasets/{DATA}"}
    for name, commit in receipt["others"].items():
        repository = hub.repositories[name]
        assert repository.private
        assert list(repository.refs("tags").values()) == [commit] == [repository.resolve("main")]
        assert repository.commit_count("main") == 2
    code = (
        "import json; from datasets import load_dataset\n"
        f"splits = load_dataset('{DATA}')\n"
        "print(json.dumps({name: sorted(split['text']) for name, split in splits.items()}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment(hub), capture_output=True, text=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    splits = json.loads(loaded.stdout.splitlines()[-1])
    assert splits == {
        name: sorted(document.text for document in read_documents(Path("data/clean") / name))
        for name in ("train", "validation")
    }
    card = hub.repositories[f"datasets/{DATA}"]
    text = card.read(card.tree("main")["README.md"][0]).decode()
    assert "| licence | documents | bytes |" in text
    assert "| mine 1 |" in text


def test_an_answer_that_is_lost_makes_no_second_commit_and_a_rerun_none_at_all(hub: Hub) -> None:
    hub.faults.append(Fault(f"POST .*{DATA}/commit/main", "lost"))
    first = published(hub)
    before = hub.requests("POST .*/commit/")

    assert published(hub) == first

    assert hub.requests("POST .*/commit/") == before
    assert hub.repositories[f"datasets/{DATA}"].commit_count("main") == 2


def test_shards_that_are_gone_go_and_files_of_others_stay(project: Path, hub: Hub) -> None:
    published(hub)
    repository = hub.repositories[f"datasets/{DATA}"]
    repository.commit("main", {"NOTES.md": b"by hand", "data/train/bOLD.parquet": b"old"}, [], "by hand")

    published(hub)

    tree = repository.tree("main")
    assert "NOTES.md" in tree
    assert "data/train/bOLD.parquet" not in tree
