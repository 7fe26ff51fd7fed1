"""The data set in a repository of its own."""

import json
from pathlib import Path

import pytest

from stages.formats.documents import read_documents
from tests.fake_hub import Hub
from tests.publish.test_hub import DATA, loaded
from tests.publish.to_hub import publish, use


@pytest.fixture(autouse=True)
def client(hub: Hub, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(hub, monkeypatch)


def test_the_data_set_loads_with_its_splits(project: Path, hub: Hub) -> None:
    receipt = publish(dataset_repository=DATA)

    repository = hub.repositories[f"datasets/{DATA}"]
    assert repository.private
    assert list(repository.refs("tags").values()) == [receipt.data_set] == [repository.resolve("main")]
    code = (
        f"import json; from datasets import load_dataset; splits = load_dataset('{DATA}')\n"
        "print(json.dumps({name: sorted(split['text']) for name, split in splits.items()}))"
    )
    assert json.loads(loaded(hub, code).splitlines()[-1]) == {
        name: sorted(document.text for document in read_documents(Path("data/clean") / name))
        for name in ("train", "validation")
    }
    text = repository.read(repository.tree("main")["README.md"][0]).decode()
    assert "| license | documents | bytes |" in text
    assert "| mine 1 |" in text


def test_it_is_committed_once_and_shards_that_are_gone_go_and_files_of_others_stay(hub: Hub) -> None:
    first = publish(dataset_repository=DATA)
    assert publish(dataset_repository=DATA) == first
    repository = hub.repositories[f"datasets/{DATA}"]
    assert repository.commit_count("main") == 2  # the first one is the Hub's own
    repository.commit("main", {"NOTES.md": b"by hand", "data/train/bOLD.parquet": b"old"}, [], "by hand")

    publish(dataset_repository=DATA)

    tree = repository.tree("main")
    assert "NOTES.md" in tree
    assert "data/train/bOLD.parquet" not in tree
