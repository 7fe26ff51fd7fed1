import json
from pathlib import Path

import pytest

from stages.formats.documents import CLEAN, read_documents, write_shard
from stages.formats.evaluation.report import Yardstick
from stages.formats.tokens import TRAIN, VALIDATION
from stages.runtime.errors import UserError
from stages.yardstick.__main__ import last_text, main
from stages.yardstick.compressors import COMPRESSORS, compressed_bytes
from tests.small_project import document

HELD_OUT = ["def parrot(seed):\n    return seed\n", "print('crackers')\n" * 30]


@pytest.fixture(autouse=True)
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, texts in ((TRAIN, ["# first\n", "# second, é\n"]), (VALIDATION, HELD_OUT)):
        (CLEAN / name).mkdir(parents=True)
        for number, text in enumerate(texts):
            write_shard(CLEAN / name / f"b{number}.parquet", [document(text)])


def test_every_held_out_document_counts_by_itself_cold_and_after_the_training_text() -> None:
    main()

    report, size = Yardstick.read(), sum(len(text.encode()) for text in HELD_OUT)
    assert report.training_bytes == len("# first\n# second, é\n".encode())
    for text, values in ((b"", report.bits_per_byte_cold), (last_text(99), report.bits_per_byte)):
        for name, start in COMPRESSORS.items():
            encode = start(text)
            taken = [
                compressed_bytes(encode, document.text.encode()) for document in read_documents(CLEAN / VALIDATION)
            ]
            expected = 8 * (sum(taken) - len(taken) * compressed_bytes(encode, b"")) / size
            assert values[name] == pytest.approx(expected, rel=1e-5)
    assert f"the last {report.training_bytes} bytes of the training text" in report.convention
    metrics = json.loads(Path("reports/metrics/yardstick.json").read_text())
    assert metrics == {f"{name}_bits_per_byte": value for name, value in report.bits_per_byte.items()}


def test_of_a_large_training_text_the_last_bytes_are_read_and_no_shard_before_them() -> None:
    (CLEAN / TRAIN / "b0.parquet").write_bytes(b"not read")

    assert last_text(10) == b"econd, \xc3\xa9\n"
    with pytest.raises(UserError, match=r"b0\.parquet: damaged"):
        last_text(14)


def test_a_split_without_documents_is_refused() -> None:
    for shard in (CLEAN / VALIDATION).iterdir():
        shard.unlink()

    with pytest.raises(UserError, match=r"^data/clean/validation: no documents; "):
        main()
