"""Python source of installed packages and of the standard library.

A wheel lists a hash for each of its files (RECORD, https://packaging.python.org/specifications/recording-installed-packages/):
what is read here is compared with it, so the corpus is what the package's authors released.
"""

import base64
import hashlib
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path, PurePosixPath
from typing import TypeVar

from stages.collect.licenses import package_license
from stages.collect.raw import RawDocument
from stages.runtime.entry import UserError

PathT = TypeVar("PathT", bound=PurePosixPath)

COPIES_OF_OTHERS = {"_vendor", "_vendored", "vendor", "vendored", "site-packages"}
"""Folders with other packages' source: those have their own name and licence."""


def read_package(name: str, tests: bool) -> Iterator[RawDocument]:
    """The Python files of a pure-Python distribution, in the order of a hash of their paths.

    Raises UserError if it is not installed, not the same on every platform, or changed since it was installed.
    """
    package = _pure_package(name)
    license = package_license(package)
    for file in _spread([file for file in package.files or [] if _wanted(file, tests)]):
        content = _content(name, Path(str(file.locate())))
        _compare_with_record(name, file, content)
        yield RawDocument(name, package.version, file.as_posix(), license, content)


def read_standard_library(tests: bool) -> Iterator[RawDocument]:
    """The standard library of the running Python, in the order of a hash of the paths."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (PurePosixPath(path.relative_to(root).as_posix()) for path in root.rglob("*.py"))
    for path in _spread([path for path in paths if _wanted(path, tests)]):
        content = (root / path).read_bytes()
        yield RawDocument("standard_library", platform.python_version(), path.as_posix(), "PSF-2.0", content)


def _pure_package(name: str) -> Distribution:
    try:
        package = distribution(name)
    except PackageNotFoundError:
        raise UserError(f"collect.sources: package `{name}` is not installed; correct its name or install it") from None
    tags = [line for line in (package.read_text("WHEEL") or "").splitlines() if line.startswith("Tag:")]
    if not tags or not all(tag.endswith("-none-any") for tag in tags) or package.files is None:
        raise UserError(
            f"collect.sources: package `{name}` is not a pure-Python wheel, so its files differ between platforms; "
            "take its folder as a source of kind `files` instead"
        )
    return package


def _wanted(path: PurePosixPath, tests: bool) -> bool:
    parts = path.parts
    is_test = any(part.startswith(("test", "_test", "idle_test")) for part in parts) or path.stem == "conftest"
    return path.suffix == ".py" and not COPIES_OF_OTHERS & set(parts) and ".." not in parts and (tests or not is_test)


def _spread(paths: Sequence[PathT]) -> list[PathT]:
    return sorted(paths, key=lambda path: hashlib.sha256(path.as_posix().encode()).digest())


def _content(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"collect.sources: package `{name}`: {path} cannot be read ({error.strerror}); "
            f"`pip install --force-reinstall --no-deps {name}`"
        ) from None


def _compare_with_record(name: str, file: PackagePath, content: bytes) -> None:
    expected = file.hash
    if expected is None:
        raise UserError(f"collect.sources: package `{name}` lists no hash for {file}; install it from a wheel")
    digest = base64.urlsafe_b64encode(hashlib.new(expected.mode, content).digest()).rstrip(b"=").decode()
    if digest != expected.value:
        raise UserError(
            f"collect.sources: package `{name}`: {file} is not what its wheel installed (RECORD lists another hash); "
            f"`pip install --force-reinstall --no-deps {name}=={distribution(name).version}`"
        )
