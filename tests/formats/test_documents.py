from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.formats import documents
from stages.formats.documents import SCHEMA, Document, documents_of, order_of, read_documents, write_shard, write_table
from stages.runtime.errors import UserError
from tests.small_project import document


@pytest.mark.parametrize("flip", [0x01, 0x80])
def test_a_flipped_byte_in_a_shard_is_found_and_the_shard_named_or_changes_no_document(
    tmp_path: Path, flip: int
) -> None:
    shard = tmp_path / "b.parquet"
    written = [document("abc" * 20), document("déf" * 20, path="é.py")]
    write_shard(shard, written)
    data = bytearray(shard.read_bytes())
    undetected, refusals = [], []
    for position in range(0, len(data), 2):
        data[position] ^= flip
        shard.write_bytes(data)
        try:
            if list(read_documents(tmp_path)) != written:
                undetected.append(position)
        except UserError as error:
            refusals.append(str(error))
        data[position] ^= flip

    assert undetected == []
    assert len(refusals) > 100
    assert [said for said in refusals if not said.startswith(f"{shard}: ") or len(said.splitlines()) > 1] == []


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(rows=st.lists(st.builds(Document, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)), largest=st.sampled_from([0, 2**31 - 1]))
def test_a_shard_has_the_bytes_that_pyarrow_gives_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Document], largest: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "MAX_COLUMN_BYTES", largest)
        write_shard(folder / "ours", rows)

    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
    write_table(folder / "theirs", pa.table(columns, schema=SCHEMA))
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()


ORIGINS = st.tuples(*[st.sampled_from(["", "a", "b", "\u00e9", "\U00020000", "\uffff"])] * 5)


@given(st.lists(ORIGINS, min_size=1))
def test_a_table_has_the_order_of_its_documents(origins: list[tuple[str, str, str, str, str]]) -> None:
    of_shard = [Document(*origin, "text") for origin in origins]
    table = pa.Table.from_pylist([asdict(document) for document in of_shard])

    ordered = documents_of(table.take(order_of(table)))

    assert list(ordered) == sorted(of_shard, key=lambda document: document.sort_key)
