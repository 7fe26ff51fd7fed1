from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.collect import shards
from stages.collect.shards import CACHE_NAME, write_documents
from stages.formats.documents import document_id, id_bits, read_documents, read_table, shard_paths
from stages.runtime.cache import CACHE, drop_unused
from stages.runtime.errors import UserError
from tests.small_project import document, folder_bytes

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=40)


def write(folder: Path, texts: list[str], shard_bytes: int) -> Path:
    folder.mkdir()
    write_documents(folder, (document(text, path=f"{i}.py") for i, text in enumerate(texts)), shard_bytes)
    return folder


@settings(max_examples=40)
@given(texts=TEXTS, shard_bytes=st.integers(1, 300))
def test_what_is_written_is_read_back_in_the_order_of_the_ids(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], shard_bytes: int
) -> None:
    folder = write(tmp_path_factory.mktemp("d") / "documents", texts, shard_bytes)

    read = list(read_documents(folder))

    assert sorted(item.text for item in read) == sorted(texts)
    assert [item.sort_key for item in read] == sorted(item.sort_key for item in read)
    assert all(item.id == document_id(item.text) for item in read)


@settings(max_examples=25)
@given(texts=TEXTS, shard_bytes=st.integers(1, 300), data=st.data())
def test_the_bytes_depend_on_the_set_of_documents_not_on_their_order(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], shard_bytes: int, data: st.DataObject
) -> None:
    place = tmp_path_factory.mktemp("d")
    items = [document(text, path=f"{i}.py") for i, text in enumerate(texts)]
    for name, order in (("a", items), ("b", data.draw(st.permutations(items)))):
        (place / name).mkdir()
        write_documents(place / name, order, shard_bytes)

    assert folder_bytes(place / "a") == folder_bytes(place / "b")


def test_copies_that_differ_in_their_revision_or_license_alone_have_one_order_too(tmp_path: Path) -> None:
    item = document("the same text")
    copies = [replace(item, revision=revision, license=license) for revision in "12" for license in ("MIT", "ISC")]
    for name, order in (("a", copies), ("b", copies[::-1])):
        (tmp_path / name).mkdir()
        write_documents(tmp_path / name, order, 100)

    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b")


def test_a_shard_holds_the_documents_whose_ids_begin_with_its_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", [f"text {number}" for number in range(300)], 200)

    for shard in shard_paths(folder):
        bits = shard.stem[1:]
        ids = pq.read_table(shard).column("id").to_pylist()
        assert ids
        assert all(id_bits(identifier, len(bits)) == bits for identifier in ids)


def test_one_document_more_changes_one_shard(tmp_path: Path) -> None:
    texts = [f"text number {number}" for number in range(200)]
    before = folder_bytes(write(tmp_path / "before", texts, 500))
    after = folder_bytes(write(tmp_path / "after", [*texts, "one more"], 500))
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert len(before) > 4
    assert len(changed) == 1


def test_the_spool_gives_the_same_shards_however_little_it_holds_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"text number {number}" * (number % 7 + 1) for number in range(300)]
    expected = folder_bytes(write(tmp_path / "in_memory", texts, 100))
    monkeypatch.setattr(shards, "BUFFER_BYTES", 50)

    assert folder_bytes(write(tmp_path / "spooled", texts, 100)) == expected


def test_what_workers_have_cached_goes_at_the_end_if_nothing_is_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.runtime.workers.POOL_START_SECONDS", 0.0)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", "0")
    write(tmp_path / "d", [f"text number {number}" for number in range(20)], 100)
    assert len(list((CACHE / CACHE_NAME).glob("??/*"))) > 3

    drop_unused()

    assert list((CACHE / CACHE_NAME).glob("??/*")) == []


def test_copies_of_one_text_stay_together_whatever_their_size(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", ["the same text"] * 9, 20)

    assert len(shard_paths(folder)) == 1
    assert [item.path for item in read_documents(folder)] == [f"{number}.py" for number in range(9)]


@pytest.mark.parametrize("bits", [1, 3])
def test_shards_split_as_far_as_they_must_however_few_buckets_a_level_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    """10 TB in shards of 256 MB are 40,000 of them, ten for each bucket of the first level."""
    texts = [f"text number {number:03d}" for number in range(500)]
    expected = folder_bytes(write(tmp_path / "one_level", texts, 50))
    monkeypatch.setattr(shards, "BUCKET_BITS", bits)
    monkeypatch.setattr(shards, "BUFFER_BYTES", 500)

    folder = write(tmp_path / "levels", texts, 50)

    assert folder_bytes(folder) == expected
    counts = [len(read_table(shard, ["id"])) for shard in shard_paths(folder)]
    assert max(counts) <= 50 // len(texts[0])
    assert len(counts) > 200


def test_copies_of_one_text_that_no_shard_can_hold_are_refused_by_their_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MAX_COLUMN_BYTES", 100)

    assert len(shard_paths(write(tmp_path / "d", [f"text number {number}" for number in range(30)], 200))) > 2
    with pytest.raises(UserError, match=r"^collect: \d\.py: the copies of this text have 112 bytes"):
        write(tmp_path / "copies", ["the same text!"] * 8, 50)
