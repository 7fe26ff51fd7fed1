"""Python source of installed packages.

A wheel lists a hash for each of its files (RECORD, https://packaging.python.org/specifications/recording-installed-packages/):
what is read here is compared with it, so the corpus is what the package's authors released.
"""

import base64
import csv
import hashlib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Literal

from stages.collect.source_kinds import Bytes, Names, SourceItem, SourceKind, SourcePart
from stages.runtime.errors import UserError

COPIES_OF_OTHERS = {"_vendor", "_vendored", "vendor", "vendored", "site-packages"}
"""Folders with other packages' source: those have their own name and license."""

ANY_PYTHON = {"py2-none-any", "py3-none-any"}
"""Tags of wheels that are installed on every platform and Python 3. A tag such as `py311-none-any` means that the
release has another wheel, with other files, for another Python."""

CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "LicenseRef-BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""Trove classifiers -> SPDX, for packages without an expression. `BSD License` does not say which BSD license."""


class Packages(SourceKind):
    """Python source of installed packages, at the versions that requirements.lock pins."""

    kind: Literal["packages"]
    names: Names
    """Distributions. Only wheels for every platform and Python are the same bytes everywhere; others are refused."""
    tests: bool
    """Whether files in a folder or module named `test...` are taken too."""
    max_bytes_each: Bytes | None
    """Bytes of text that one package may give; null is no limit. Files are taken in the order of a hash of their
    paths, so that a limit leaves a spread sample."""

    @property
    def libraries(self) -> list[str]:
        """All of them."""
        return self.names

    def parts(self, limit: int) -> Iterator[SourcePart]:
        """Each package as a part."""
        for name in self.names:
            yield SourcePart(read_package(name, self.tests), self.max_bytes_each, 1.0)


def read_package(name: str, tests: bool) -> Iterator[SourceItem]:
    """The Python files of a distribution, in the order of a hash of their paths. Raises UserError if it is not
    installed, not the same on every platform, or changed since it was installed."""
    package = pure_package(name)
    license = package_license(package)
    # Not `package.files`, which since Python 3.12 leaves out files that are missing.
    rows = csv.reader((package.read_text("RECORD") or "").splitlines())
    files = [(PurePosixPath(file), hash) for file, hash, *_ in rows if _wanted(PurePosixPath(file), tests)]
    for file, hash in sorted(files, key=lambda one: hashlib.sha256(one[0].as_posix().encode()).digest()):
        yield SourceItem(name, file.as_posix(), package.version, license, _released_content(package, name, file, hash))


def pure_package(name: str) -> Distribution:
    """An installed package whose wheel is the same for every platform and Python. Raises UserError otherwise."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        raise UserError(f"collect.sources: package `{name}` is not installed; correct its name or install it") from None
    lines = (package.read_text("WHEEL") or "").splitlines()
    tags = {line.removeprefix("Tag:").strip() for line in lines if line.startswith("Tag:")}
    if not tags or not tags <= ANY_PYTHON or not package.read_text("RECORD"):
        raise UserError(
            f"collect.sources: package `{name}` is not from a wheel for every platform and Python "
            f"({', '.join(sorted(tags)) or 'no tag'}), so its files may differ elsewhere; "
            "leave it out, or take its folder as a source of kind `files`"
        )
    return package


def package_license(package: Distribution) -> str:
    """A package's license as an SPDX expression: its own (PEP 639), else from its classifiers, else empty."""
    metadata = package.metadata
    if "License-Expression" in metadata:
        return str(metadata["License-Expression"])
    classifiers = [line.split(" :: ") for line in metadata.get_all("Classifier") or []]
    names = {parts[-1] for parts in classifiers if parts[0] == "License" and parts[-1] != "OSI Approved"}
    known = [CLASSIFIERS.get(name, "") for name in sorted(names)]
    return " AND ".join(known) if all(known) else ""


def _wanted(path: PurePosixPath, tests: bool) -> bool:
    parts = path.parts
    is_test = any(part.startswith(("test", "_test", "idle_test")) for part in parts) or path.stem == "conftest"
    return path.suffix == ".py" and not COPIES_OF_OTHERS & set(parts) and ".." not in parts and (tests or not is_test)


def _released_content(package: Distribution, name: str, file: PurePosixPath, hash: str) -> bytes:
    """The content of a file, which has the hash that RECORD lists for it."""
    path = Path(str(package.locate_file(file)))
    algorithm, _, expected = hash.partition("=")
    if not expected:
        raise UserError(f"collect.sources: package `{name}` lists no hash for {file}; install it from a wheel")
    content = path.read_bytes() if path.is_file() else None
    digest = hashlib.new(algorithm, content or b"").digest()
    if content is None or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != expected:
        raise UserError(
            f"collect.sources: package `{name}`: {file} is not what its wheel installed (RECORD lists another hash); "
            f"`pip install --force-reinstall --no-deps {name}=={package.version}`"
        )
    return content
