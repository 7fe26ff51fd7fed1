from pathlib import Path

import pytest

from stages.formats.documents import Document, document_id, read_shard, shard_paths, write_shard
from stages.tokenizer import train as training
from stages.tokenizer.train import train, train_on_documents


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(4):
        write_texts(
            folder / f"b{number:02b}.parquet", [f"shard {number} text {one} of the same words\n" for one in "abc"]
        )
    return folder


def write_texts(shard: Path, texts: list[str]) -> None:
    write_shard(shard, [Document(document_id(text), "s", "", "p", "", text) for text in texts])


def all_texts(folder: Path) -> list[str]:
    return [text for shard in shard_paths(folder) for text in read_shard(shard).column("text").to_pylist()]


def test_a_limit_takes_the_first_documents(documents: Path) -> None:
    texts = all_texts(documents)
    limit = sum(len(text) for text in texts[:5])

    for _ in range(2):
        limited = train_on_documents(documents, limit, 300, "gpt2")
        assert limited.to_str() == train([texts[:5]], 300, "gpt2").to_str()
        train_on_documents(documents, 2**40, 300, "gpt2")


def test_an_edit_outside_of_the_sample_trains_nothing(documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = sum(len(text) for text in all_texts(documents)[:5])
    before = train_on_documents(documents, limit, 300, "gpt2").to_str()
    write_texts(documents / "b11.parquet", ["an edited text"])
    monkeypatch.setattr(training, "train", None)

    assert train_on_documents(documents, limit, 300, "gpt2").to_str() == before
    with pytest.raises(TypeError):
        train_on_documents(documents, limit, 290, "gpt2")
