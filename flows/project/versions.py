"""Write versions.yaml from requirements.lock: `python -m flows.project.versions`, after an upgrade on purpose.

It holds the libraries that dvc.yaml lists for some stage; an upgrade of one then reruns exactly those stages.
"""

import re
import tomllib
from pathlib import Path

from ruamel.yaml import YAML

DVC_FILE = Path("dvc.yaml")
LOCK_FILE = Path("requirements.lock")
DEVELOPMENT_LOCK_FILE = Path("requirements-dev.lock")
VERSIONS_FILE = Path("versions.yaml")

_NAME = re.compile(r"[A-Za-z0-9._-]+")

HEADING = "# Generated from requirements.lock by `make versions`: the libraries that results depend on. Do not edit.\n"


def named_libraries(dvc_file: Path = DVC_FILE) -> dict[str, list[str]]:
    """The libraries that dvc.yaml lists for each stage."""
    stages = YAML(typ="safe").load(dvc_file)["stages"]
    libraries: dict[str, list[str]] = {}
    for name, stage in stages.items():
        tables = [entry for entry in stage.get("params", []) if isinstance(entry, dict)]
        libraries[name] = [library for table in tables for library in table.get(str(VERSIONS_FILE), [])]
    return libraries


def locked_versions(lock_file: Path = LOCK_FILE) -> dict[str, str]:
    """The pins of requirements.lock, by normalised name (PEP 503)."""
    lines = lock_file.read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {normalised(name): number.strip() for name, number in pins}


def groups(pyproject: Path = Path("pyproject.toml")) -> dict[str, set[str]]:
    """The libraries that pyproject.toml names: `run` for those that everyone needs, and each optional group."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    lists = {"run": project["dependencies"], **project["optional-dependencies"]}
    return {name: {normalised(_NAME.match(entry)[0]) for entry in entries} for name, entries in lists.items()}  # type: ignore[index]


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def versions_text(dvc_file: Path = DVC_FILE, lock_file: Path = LOCK_FILE) -> str:
    """What versions.yaml shall hold."""
    pins = locked_versions(lock_file)
    names = sorted({name for names in named_libraries(dvc_file).values() for name in names}, key=str.lower)
    return HEADING + "".join(f"{name}: {pins[normalised(name)]}\n" for name in names)


def main() -> None:
    """Write the file."""
    VERSIONS_FILE.write_text(versions_text(), encoding="utf-8")
    print(f"wrote {VERSIONS_FILE}")


if __name__ == "__main__":
    main()
