from pathlib import Path

from flows.run.dvc_lock import sort_lock_file

DVC_YAML = "stages:\n  b: {cmd: x}\n  cell: {matrix: {x: [1]}, cmd: x}\n  a: {cmd: x}\n"
A, B, CELL = "  a:\n    cmd: x\n", "  b:\n    cmd: x\n    outs:\n    - path: b\n", "  cell@1:\n    cmd: x\n"


def test_the_lock_follows_dvc_yaml_whatever_finished_first(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    lock = tmp_path / "dvc.lock"
    lock.write_text("schema: '2.0'\nstages:\n" + A + CELL + B)

    sort_lock_file(tmp_path / "dvc.yaml", lock)

    assert lock.read_text() == "schema: '2.0'\nstages:\n" + B + CELL + A


def test_a_lock_in_order_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    lock = tmp_path / "dvc.lock"
    lock.write_text("schema: '2.0'\nstages:\n" + B + A)
    before = lock.stat().st_mtime_ns

    sort_lock_file(tmp_path / "dvc.yaml", lock)

    assert lock.stat().st_mtime_ns == before
