from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.formats.documents import (
    Document,
    documents_of,
    order_of,
    read_documents,
    require_documents,
    write_shard,
)
from stages.runtime.entry import UserError
from tests.small_project import document


@pytest.mark.parametrize("flip", [0x01, 0x80])
def test_a_flipped_byte_in_a_shard_is_found_and_the_shard_named_or_changes_no_document(
    tmp_path: Path, flip: int
) -> None:
    shard = tmp_path / "b.parquet"
    documents = [document("abc" * 20), document("déf" * 20, path="é.py")]
    write_shard(shard, documents)
    data = bytearray(shard.read_bytes())
    undetected, refusals = [], []
    for position in range(0, len(data), 2):
        data[position] ^= flip
        shard.write_bytes(data)
        try:
            if list(read_documents(tmp_path)) != documents:
                undetected.append(position)
        except UserError as error:
            refusals.append(str(error))
        data[position] ^= flip

    assert undetected == []
    assert len(refusals) > 100
    assert [said for said in refusals if not said.startswith(f"{shard}: ") or len(said.splitlines()) > 1] == []


def test_a_folder_without_documents_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="documents: no documents; run `dvc repro`"):
        require_documents(tmp_path / "documents")


ORIGINS = st.tuples(*[st.sampled_from(["", "a", "b", "\u00e9", "\U00020000", "\uffff"])] * 5)


@given(st.lists(ORIGINS, min_size=1))
def test_a_table_has_the_order_of_its_documents(origins: list[tuple[str, str, str, str, str]]) -> None:
    documents = [Document(*origin, "text") for origin in origins]
    table = pa.Table.from_pylist([asdict(document) for document in documents])

    ordered = documents_of(table.take(order_of(table)))

    assert list(ordered) == sorted(documents, key=lambda document: document.sort_key)
