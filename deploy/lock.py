"""List the hashes of every file of the locked versions in the locks: `make lock`, after a version was changed in one.

A lock's lines are `NAME==VERSION --hash=...`: files of all platforms, of the indexes and folders that pip is configured
with. Hashes of the same version from before are kept, since another machine may have seen other builds.
"""

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from install import GPU_LOCK, PIN, ROOT, RUN_LOCK, UV_LOCK, by_pip, normalized, pip_settings, uv, uv_options

DEV_LOCK = ROOT / "requirements-dev.lock"

HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")

COMPILE = ("compile", "-q", "--universal", "--python-version=3.11", "--no-header", "--no-annotate", "--generate-hashes")
"""With the lowest version of Python in pyproject.toml."""

SETTINGS = pip_settings()

Requirement = tuple[str, str, str, set[str]]
"""Name, version, marker, hashes."""


def requirements(text: str) -> list[Requirement]:
    """The requirements of a lock, or of uv's output."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if pin := PIN.match(line):
            marker = line.partition("--hash")[0].partition(";")[2].strip()
            found.append((pin[1], pin[2], marker, set(HASH.findall(line))))
    return found


def public(version: str) -> str:
    """The version without its build tag."""
    return version.partition("+")[0]


def compiled(given: Iterable[str], *options: str) -> str:
    """Return uv's answer. Ends the process if uv fails, after it has printed why."""
    done = uv(*COMPILE, *options, "-", given="\n".join(given), settings=SETTINGS)
    return done.stdout if done.returncode == 0 else sys.exit(done.returncode)


def index_only() -> list[str]:
    """Options for the first index alone."""
    return [option for option in uv_options(SETTINGS) if option.startswith("--default-index")]


def files_of(pins: list[str]) -> dict[tuple[str, str], set[str]]:
    """Return (name, version without build tag) -> the hashes of its files."""
    # Of two places with the same version uv sees one, and 2.13.0+cpu hides 2.13.0: ask the first index by itself too.
    answers = requirements(compiled(pins, "--no-deps", *index_only()))
    answers += requirements(compiled(pins, "--no-deps", *uv_options(SETTINGS)))
    hashes: dict[tuple[str, str], set[str]] = {}
    for name, version, _, found in answers:
        hashes.setdefault((normalized(name), public(version)), set()).update(found)
    for wheel in [file for folder in SETTINGS.get("find-links", "").split() for file in Path(folder).glob("*.whl")]:
        name, version = wheel.name.split("-")[:2]
        if (key := (normalized(name), public(version))) in hashes:  # uv hashes no file of a folder
            with wheel.open("rb") as file:
                hashes[key].add(f"--hash=sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}")
    return hashes


def write(path: Path, locked: list[Requirement]) -> None:
    """Write a lock with the hashes of these versions."""
    hashes, lines = files_of([f"{name}=={version}" for name, version, _, _ in locked]), []
    for name, version, marker, before in locked:
        found = hashes[normalized(name), public(version)]
        known = found | before if found & before else found  # none in common: those of the version before
        lines.append(" ".join([f"{name}=={version}", *([f"; {marker}"] if marker else []), *sorted(known)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(lines)} packages", flush=True)


def gpu_libraries(run: list[Requirement]) -> list[Requirement]:
    """What the index's build of torch needs beyond requirements.lock, in the versions of before if they still fit."""
    torch = [f"{name}=={version}" for name, version, _, _ in run if name == "torch"]
    compiled(torch, f"--constraints={RUN_LOCK}", f"--output-file={GPU_LOCK}", *index_only())
    named = {normalized(name) for name, *_ in run}
    return [one for one in requirements(GPU_LOCK.read_text(encoding="utf-8")) if normalized(one[0]) not in named]


def main() -> int:
    """Write all locks; returns the exit code."""
    if by_pip(UV_LOCK, "--only-binary=uv") != 0:
        return 1
    for path in (RUN_LOCK, DEV_LOCK, UV_LOCK):
        write(path, requirements(path.read_text(encoding="utf-8")))
    write(GPU_LOCK, gpu_libraries(requirements(RUN_LOCK.read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
