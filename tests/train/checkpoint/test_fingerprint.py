import shutil
from pathlib import Path

import pytest

from stages.train.checkpoint.resume import IDENTITY, training_code, why_afresh

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("file", "before", "after", "afresh"),
    [
        ("train/loop.py", '"""', '"""A remark. ', False),
        ("train/loop.py", "\nimport ", "\n# A remark.\nimport ", False),
        ("train/commands/trace.py", "\nimport ", "\nX = 1\nimport ", False),
        ("train/monitoring/report.py", "\nimport ", "\nX = 1\nimport ", False),
        ("train/monitoring/results.py", "\nimport ", "\nX = 1\nimport ", False),
        ("train/launcher.py", "\nimport ", "\nX = 1\nimport ", False),
        ("formats/reports.py", "\nfrom ", "\nX = 1\nfrom ", False),
        ("train/validation.py", "\nimport ", "\nX = 1\nimport ", True),
        ("runtime/entry.py", "\nimport ", "\nX = 1\nimport ", False),
        ("train/loop.py", "\nimport ", "\nX = 1\nimport ", True),
        ("train/optim/muon.py", "\nimport ", "\nX = 1\nimport ", True),
        ("formats/tokens.py", "\nimport ", "\nX = 1\nimport ", True),
        ("formats/plain_head.py", "\nimport ", "\nX = 1\nimport ", True),
    ],
)
def test_checkpoints_are_left_behind_for_code_that_computes_and_for_nothing_else(
    tmp_path: Path, file: str, before: str, after: str, afresh: bool
) -> None:
    shutil.copytree(ROOT / "stages", tmp_path / "stages")
    path = tmp_path / "stages" / file
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")

    assert (training_code(tmp_path) != training_code()) is afresh


def test_a_damaged_note_about_another_run_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / IDENTITY).write_bytes(b'{"train": \xff')

    assert why_afresh(tmp_path / "own", {}) == [f"{tmp_path / 'other' / IDENTITY} is damaged"]
