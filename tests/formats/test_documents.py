from pathlib import Path

import pytest

from stages.formats.documents import document_id, read_documents, require_documents, shard_paths, write_shard
from stages.formats.entry import UserError
from tests.small_project import document


def test_a_flipped_byte_in_a_shard_is_found_and_the_shard_named(tmp_path: Path) -> None:
    shard = tmp_path / "b.parquet"
    write_shard(shard, [document("abc" * 500), document("def" * 500)])
    data = bytearray(shard.read_bytes())
    undetected = []
    for position in range(0, len(data), 5):
        data[position] ^= 0x10
        shard.write_bytes(data)
        try:
            assert shard_paths(tmp_path) == [shard]
            read = list(read_documents(tmp_path))
            if any(item.id != document_id(item.text) for item in read):
                undetected.append(position)
        except UserError as error:
            assert str(shard) in str(error)  # noqa: PT017 - some flips hit bytes that no page covers
        data[position] ^= 0x10

    assert undetected == []


def test_a_folder_without_documents_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="documents: no documents; run `dvc repro`"):
        require_documents(tmp_path / "documents")
