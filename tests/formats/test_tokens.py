import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.formats.tokens import STORE_MANIFEST, Manifest, TokenStore
from stages.runtime.errors import UserError
from stages.tokenize.encode import smallest_dtype, write_token_shard

SHARDS = st.lists(st.lists(st.lists(st.integers(1, 299), max_size=12), max_size=6), max_size=5)


def write_store(folder: Path, shards: list[list[list[int]]], vocab_size: int = 300) -> Path:
    folder.mkdir()
    entries = []
    for number, documents in enumerate(shards):
        entries.append(
            write_token_shard(
                folder,
                f"b{number}",
                np.array([token for ids in documents for token in ids], dtype=np.uint32),
                np.array([len(ids) for ids in documents], dtype=np.int64),
                [{"id": f"{number}-{k}", "source": "é", "bytes": 2 * len(ids)} for k, ids in enumerate(documents)],
                0,
                smallest_dtype(vocab_size),
            )
        )
    manifest = Manifest(smallest_dtype(vocab_size), vocab_size, 0, "hash", "test 1", tuple(entries))
    (folder / STORE_MANIFEST).write_text(manifest.to_json())
    return folder


@pytest.mark.usefixtures("few_descriptors")
def test_a_store_may_have_more_shards_than_a_process_may_open_files(tmp_path: Path) -> None:
    store = TokenStore(write_store(tmp_path / "store", [[[number % 299 + 1]] for number in range(300)]))

    assert store.read(0, 600)[::2].tolist() == [number % 299 + 1 for number in range(300)]
    assert store.document_starts.tolist() == list(range(0, 600, 2))


def test_a_store_that_is_no_longer_used_holds_no_file_open(tmp_path: Path) -> None:
    folder, gone = write_store(tmp_path / "store", [[[1]] * 9, [[2]] * 9]), []
    for _ in range(2):
        store = TokenStore(folder)
        tokens, info = store.read(0, 18), store.document_info(17)
        assert (tokens.tolist(), info["id"]) == ([1, 0] * 9, "1-8")
        gone.append(weakref.ref(store))
    del store
    assert [reference() for reference in gone] == [None, None]


@settings(max_examples=60)
@given(shards=SHARDS, data=st.data())
def test_documents_and_positions_are_read_back_across_shards(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[list[int]]], data: st.DataObject
) -> None:
    store = TokenStore(write_store(tmp_path_factory.mktemp("s") / "store", shards))
    documents = [(f"{n}-{k}", [*ids, 0]) for n, shard in enumerate(shards) for k, ids in enumerate(shard)]
    flat = [token for _, ids in documents for token in ids]

    assert store.manifest.documents == len(documents)
    assert store.manifest.tokens == len(flat)
    for number, (name, ids) in enumerate(documents):
        assert store.document(number).tolist() == ids
        assert store.document_info(number)["id"] == name
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    assert store.read(start, stop).tolist() == flat[start:stop]
    if start < stop:
        begins = store.document_starts.tolist()
        assert store.starts_within(start, stop).tolist() == [begin for begin in begins if start <= begin < stop]
        within = list(store.documents_within(start, stop))
        assert [token for number, a, b in within for token in documents[number][1][a:b]] == flat[start:stop]


def test_the_documents_of_a_shard_are_read_once_however_many_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = Path.read_bytes
    store = TokenStore(write_store(tmp_path / "s", [[[1]] * 100, [[2]] * 100]))
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self.name) or whole(self))

    assert [store.document_info(number)["id"] for number in (0, 99, 150)] == ["0-0", "0-99", "1-50"]
    assert [store.document_info(number)["id"] for number in range(100, 200)] == [f"1-{k}" for k in range(100)]
    assert read == ["b0.documents.jsonl", "b1.documents.jsonl"]


def test_ids_above_65535_take_four_bytes(tmp_path: Path) -> None:
    store = TokenStore(write_store(tmp_path / "s", [[[1, 70_000]]], vocab_size=2**16 + 5000))

    assert store.manifest.dtype == "uint32"
    assert store.document(0).tolist() == [1, 70_000, 0]
    assert smallest_dtype(2**16) == "uint16"


@pytest.mark.parametrize("name", ["b0.tokens.bin", "b0.offsets.bin", "b0.documents.jsonl"])
def test_a_flipped_byte_is_found_by_its_hash_and_the_file_named(tmp_path: Path, name: str) -> None:
    folder = write_store(tmp_path / "s", [[[1, 2, 3]]])
    data = bytearray((folder / name).read_bytes())
    data[1] ^= 1
    (folder / name).write_bytes(data)

    with pytest.raises(UserError, match=rf"{name}: its sha256 is not the one in manifest\.json"):
        TokenStore(folder).verify()


def test_a_flipped_byte_in_the_manifest_is_never_a_fault_of_the_program(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "s", [[[1, 2, 3]], [[4, 5]]])
    data = bytearray((folder / STORE_MANIFEST).read_bytes())
    refusals = []
    for position in range(len(data)):
        data[position] ^= 0x02
        (folder / STORE_MANIFEST).write_bytes(data)
        try:
            TokenStore(folder).verify()
        except UserError as error:
            refusals.append(str(error))
        data[position] ^= 0x02

    assert len(refusals) > len(data) / 2
    assert [said for said in refusals if not said.startswith(str(folder))] == []


def test_a_file_cut_short_is_refused_when_the_store_opens(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "s", [[[1, 2, 3]]])
    (folder / "b0.tokens.bin").write_bytes(b"\1\0")

    with pytest.raises(UserError, match="missing or not the size"):
        TokenStore(folder)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no token store \(no manifest\.json\); run `dvc repro tokenize`"):
        TokenStore(tmp_path)
    (tmp_path / STORE_MANIFEST).write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        TokenStore(tmp_path)
