from importlib.metadata import PathDistribution
from pathlib import Path

from stages.formats.revision.wheels import wheel_digest

RECORD = """\
tiny/__init__.py,sha256=aaa,3
tiny-1.0.dist-info/METADATA,sha256=bbb,50
"""

INSTALLED = """\
../../../bin/tiny,sha256=ccc,200
tiny/__init__.py,sha256=aaa,3
tiny/__pycache__/__init__.cpython-311.pyc,,
tiny-1.0.dist-info/INSTALLER,sha256=ddd,4
tiny-1.0.dist-info/METADATA,sha256=bbb,50
tiny-1.0.dist-info/RECORD,,
tiny-1.0.dist-info/REQUESTED,sha256=eee,0
"""


def digest(folder: Path, record: str) -> str | None:
    folder.mkdir()
    (folder / "RECORD").write_text(record)
    return wheel_digest(PathDistribution(folder))


def test_one_wheel_has_one_digest_wherever_it_is_installed_and_another_wheel_another(tmp_path: Path) -> None:
    first = digest(tmp_path / "a", RECORD)

    assert first == digest(tmp_path / "b", INSTALLED)
    assert first != digest(tmp_path / "c", INSTALLED.replace("aaa", "fff"))


def test_a_library_without_a_list_of_its_files_has_none(tmp_path: Path) -> None:
    assert wheel_digest(PathDistribution(tmp_path)) is None
