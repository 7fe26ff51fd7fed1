from importlib.metadata import version
from pathlib import Path

import pytest

from stages.runtime.entry import UserError
from stages.runtime.versions import require_locked


def write(folder: Path, **versions: str) -> Path:
    path = folder / "versions.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in versions.items()))
    return path


def test_the_locked_version_passes_and_a_build_tag_does_not_count(tmp_path: Path) -> None:
    release = version("torch").split("+")[0]

    require_locked("torch", "numpy", path=write(tmp_path, torch=release, numpy=version("numpy")))


def test_another_version_is_refused_with_both_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"numpy: .*versions\.yaml says 0\.1\.0, found \d"):
        require_locked("numpy", path=write(tmp_path, numpy="0.1.0"))


def test_a_missing_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found not installed"):
        require_locked("no-such-library", path=write(tmp_path, **{"no-such-library": "0.1.0"}))
