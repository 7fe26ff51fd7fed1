import base64
import hashlib
import re
from pathlib import Path

import pytest
import yaml

from stages.collect.__main__ import is_allowed
from stages.collect.sources.packages import package_license, pure_package, read_package
from stages.runtime.errors import UserError
from tests.small_project import ROOT

FILES = {
    "toy/__init__.py": "VERSION = 1\n",
    "toy/tests/test_a.py": "assert True\n",
    "toy/test_inside.py": "assert True\n",
    "toy/_vendor/other.py": "COPY = 1\n",
    "toy/data.json": "{}\n",
    "toy/latest.py": "x = 1\n",
}


def install(folder: Path, tag: str = "py3-none-any", metadata: str = "License-Expression: MIT\n") -> Path:
    """A distribution as an installer lays it out."""
    info = folder / "toy_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: toy-package\nVersion: 1.2\n{metadata}")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
    lines = []
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text)}\n")
    (info / "RECORD").write_text("".join(lines))
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_packages_python_files_are_taken_without_its_tests_and_the_copies_it_carries(site: Path) -> None:
    install(site)

    found = {raw.path: raw for raw in read_package("toy-package", tests=False)}

    assert found.keys() == {"toy/__init__.py", "toy/latest.py"}
    first = found["toy/__init__.py"]
    assert (first.source, first.revision, first.license) == ("toy-package", "1.2", "MIT")
    assert first.content == b"VERSION = 1\n"
    assert {raw.path for raw in read_package("toy-package", tests=True)} - found.keys() >= {
        "toy/tests/test_a.py",
        "toy/test_inside.py",
    }


def test_what_is_not_as_it_was_released_is_refused_with_the_command_that_repairs_it(site: Path) -> None:
    install(site)
    edited = "toy/latest.py is not what its wheel installed (RECORD lists another hash)"
    repair = "`pip install --force-reinstall --no-deps toy-package"
    for change in (lambda path: path.write_text("x = 2\n"), Path.unlink):
        change(site / "toy/latest.py")
        with pytest.raises(UserError, match=re.escape(f"package `toy-package`: {edited}; {repair}==1.2`")):
            list(read_package("toy-package", tests=False))


def test_an_empty_file_that_is_gone_is_refused_although_nothing_has_its_hash(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "toy/latest.py", "")
    install(site)
    (site / "toy/latest.py").unlink()

    with pytest.raises(UserError, match=r"toy/latest\.py is not what its wheel installed"):
        list(read_package("toy-package", tests=False))


def test_a_package_that_is_not_installed_is_refused(site: Path) -> None:
    with pytest.raises(UserError, match="`toy-package` is not installed; correct its name or install it"):
        list(read_package("toy-package", tests=False))


@pytest.mark.parametrize("tag", ["cp311-cp311-manylinux_2_28_x86_64", "py311-none-any"])
def test_a_wheel_for_one_platform_or_one_python_is_refused(site: Path, tag: str) -> None:
    install(site, tag=tag)
    with pytest.raises(UserError, match=f"not from a wheel for every platform and Python .{tag}., so its files may"):
        list(read_package("toy-package", tests=False))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("License-Expression: Apache-2.0 OR BSD-2-Clause\n", "Apache-2.0 OR BSD-2-Clause"),
        ("Classifier: License :: OSI Approved :: MIT License\n", "MIT"),
        ("Classifier: License :: OSI Approved :: BSD License\n", "LicenseRef-BSD"),
        ("Classifier: License :: OSI Approved\nClassifier: Programming Language :: Python\n", ""),
        ("Classifier: License :: Other/Proprietary License\n", ""),
        ("License: do as you like\n", ""),
    ],
)
def test_the_license_is_the_packages_own_expression_or_from_its_classifiers(
    site: Path, metadata: str, expected: str
) -> None:
    install(site, metadata=metadata)

    assert {raw.license for raw in read_package("toy-package", tests=False)} == {expected}


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("MIT AND (GPL-3.0-only OR Apache-2.0)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("see LICENSE file", False),
        ("", False),
    ],
)
def test_an_expression_passes_if_allowed_licenses_can_meet_it(expression: str, allowed: bool) -> None:
    assert is_allowed(expression, {"MIT", "Apache-2.0"}) is allowed


def test_the_preset_installed_names_every_pure_package_of_the_lock_under_a_permissive_license() -> None:
    """Those of some platforms alone are left out: the corpus is the same bytes on all."""
    allowed = yaml.safe_load((ROOT / "params.yaml").read_text())["collect"]["licenses"]
    everywhere = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if ";" not in line]
    names = [line.partition("==")[0] for line in everywhere if "==" in line]
    found = []
    for name in names:
        try:
            license = package_license(pure_package(name))
        except UserError:
            continue
        if license and is_allowed(license, allowed):
            found.append(name)

    (source,) = yaml.safe_load((ROOT / "conf/corpus/installed.yaml").read_text())["collect"]["sources"]

    assert source["names"] == sorted(found, key=str.lower)
