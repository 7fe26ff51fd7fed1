"""The library versions that a stage's result depends on.

`versions.yaml` is generated from `requirements.lock`; dvc.yaml lists its keys among a stage's params, so an
upgrade of one library reruns exactly the stages whose bytes it may change.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from stages.runtime.entry import UserError

VERSIONS_FILE = Path("versions.yaml")


def require_locked(*libraries: str, path: Path = VERSIONS_FILE) -> None:
    """Raise UserError unless each library is installed in the version that `versions.yaml` names.

    A local build tag (`2.13.0+cpu`) does not count: the same release on other hardware is the same version.
    """
    locked = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # 26.3 stays text
    for library in libraries:
        if library not in locked:
            raise UserError(
                f"{library}: not in {path}, so an upgrade would go unnoticed; name it under `versions.yaml` in the "
                "stage's params in dvc.yaml, pin it in requirements.lock and run `make versions`"
            )
        try:
            installed = version(library).split("+")[0]
        except PackageNotFoundError:
            installed = "not installed"
        if installed != locked[library]:
            raise UserError(
                f"{library}: {path} says {locked[library]}, found {installed}; "
                "install requirements.lock again (`make setup`), or run `make versions` after an upgrade on purpose"
            )
