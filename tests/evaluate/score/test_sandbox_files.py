"""A sandbox shows Python and the C libraries, and nothing else of what is installed below the same folders."""

import sys
import sysconfig
from contextlib import closing
from pathlib import Path

import pytest

from stages.evaluate.score import sandbox
from stages.evaluate.score.sandbox import Judge
from stages.formats.evaluation.verdicts import Outcome
from stages.runtime.entry import UserError
from tests.evaluate.score.conftest import LIMITS, Run


@pytest.fixture
def library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of C libraries, in which a project is."""
    library = folder / "lib"
    (library / "app/tests").mkdir(parents=True)
    (library / "liba.so").write_text("library")
    (library / "app/tests/solutions.py").write_text("secret")
    monkeypatch.setattr(sandbox, "LIBRARIES", (*sandbox.LIBRARIES, library))
    return library


def read(path: Path) -> Outcome:
    with closing(Judge(LIMITS)) as judge:
        return judge.judge(f"assert open({str(path)!r}).read() == 'library'")


def test_a_project_below_a_folder_of_libraries_is_hidden(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = library / "app/tests/solutions.py"
    assert read(secret) == Outcome("assertion")

    monkeypatch.chdir(library / "app")

    assert read(secret) == Outcome("exception", "FileNotFoundError")
    assert read(library / "liba.so") == Outcome("passed")


def test_a_home_folder_below_a_folder_of_libraries_is_hidden(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(library / "app"))

    assert read(library / "app/tests/solutions.py") == Outcome("exception", "FileNotFoundError")


def test_a_project_that_a_link_to_a_folder_of_libraries_leads_to_is_hidden(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = library.parent / "link"
    link.symlink_to(library)
    monkeypatch.setattr(sandbox, "LIBRARIES", (*sandbox.LIBRARIES, link))
    monkeypatch.chdir(library / "app")

    assert read(link / "app/tests/solutions.py") == Outcome("exception", "FileNotFoundError")


def test_a_project_that_is_itself_a_folder_of_libraries_is_refused(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(library)

    with pytest.raises(UserError, match=f"generated code can read {library}.*move the project"):
        Judge(LIMITS)


def test_of_pythons_own_folder_only_its_library_and_executable_are_shown(run: Run) -> None:
    base, library = sys.base_prefix, sysconfig.get_path("stdlib")
    code = f"""
import os
def f():
    assert os.path.exists({library!r} + "/os.py")
    packages = [f"{library}/{{name}}" for name in os.listdir({library!r}) if name.endswith("-packages")]
    return os.listdir({base!r}), os.listdir({base!r} + "/bin"), list(map(os.listdir, packages))
"""
    test = f"""
def check(candidate):
    folders, programs, packages = candidate()
    assert set(folders) <= {{"bin", "lib", "lib64"}}
    assert programs == [{sandbox.python().name!r}]
    assert not any(packages)
"""

    assert run(code, test) == Outcome("passed")
