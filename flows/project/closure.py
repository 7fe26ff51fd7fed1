"""The code that each stage depends on, in dvc.yaml: `python -m flows.project.closure` compares, `--write` corrects it.

Code deps are generated, sorted, and come after a stage's data.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq

from stages.runtime.code import import_closure

DVC_FILE = Path("dvc.yaml")
HEADING = "code: python -m flows.project.closure --write"

_STAGE_COMMAND = re.compile(r"python -m (stages(?:\.\w+)+)")


@dataclass(frozen=True, slots=True)
class Stale:
    """A stage whose code deps are not its import closure."""

    stage: str
    missing: tuple[str, ...]
    """Imported and not listed: a change of these files would go unnoticed."""
    extra: tuple[str, ...]
    """Listed and no longer imported: a change of these files would run the stage for nothing."""

    def __str__(self) -> str:
        parts = (("not listed", self.missing), ("no longer imported", self.extra))
        return f"{self.stage}: " + "; ".join(f"{what}: {', '.join(files)}" for what, files in parts if files)


def stale_deps(stages: Mapping[str, Mapping[str, Any]], root: Path = Path()) -> Iterator[Stale]:
    """Those of dvc.yaml's `stages` that run a package of ours and do not list what it imports."""
    for name, module in stage_modules(stages):
        closure = set(import_closure(module, root.absolute()))
        if closure:  # else the package is not in this project
            listed = set(code_deps(stages[name].get("deps", ())))
            if listed != closure:
                yield Stale(name, tuple(sorted(closure - listed)), tuple(sorted(listed - closure)))


def stage_modules(stages: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The stages that run a package of `stages/`, each with that package's name."""
    for name, stage in stages.items():
        if found := _STAGE_COMMAND.search(str(stage.get("cmd", ""))):
            yield name, found.group(1)


def code_deps(deps: list[str]) -> list[str]:
    """Of a stage's deps those that are code of ours."""
    return [dep for dep in deps if dep.startswith("stages/") and dep.endswith(".py")]


def main() -> None:
    """Print each stage whose deps are not its import closure; with --write, correct dvc.yaml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the closures into dvc.yaml")
    write = parser.parse_args().write
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 10_000, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(DVC_FILE)
    stale = list(stale_deps(document["stages"]))
    for one in stale:
        print(one)
    if write:
        for name, module in stage_modules(document["stages"]):
            if closure := import_closure(module, Path().absolute()):
                document["stages"][name]["deps"] = _with_code(document["stages"][name].get("deps", []), closure)
        yaml.dump(document, DVC_FILE)
    elif stale:
        raise SystemExit("dvc.yaml does not list what the stages import; run `python -m flows.project.closure --write`")


def _with_code(deps: list[str], closure: list[str]) -> CommentedSeq:
    data = [dep for dep in deps if dep not in code_deps(deps)]
    result = CommentedSeq([*data, *closure])
    result.yaml_set_comment_before_after_key(len(data), before=HEADING, indent=6)
    return result


if __name__ == "__main__":
    main()
