"""The code that a stage hangs on: `python -m flows.project.closure` compares it with dvc.yaml, `--write` puts it there.

The import closure of `stages/NAME/__main__.py` within `stages/`, read from the source without running it. A module that
is only named in a string (`"stages.train.worker"`, started as a process) counts as imported.
"""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML

DVC_FILE = Path("dvc.yaml")

_STAGE_COMMAND = re.compile(r"python -m (stages\.\w+)")


def import_closure(module: str, root: Path = Path()) -> list[str]:
    """The files of `module` (a package stands for its `__main__`) and of all it imports within stages/, sorted."""
    todo = [f"{module}.__main__"] if (root / _path(f"{module}.__main__")).exists() else [module]
    files: set[Path] = set()
    while todo:
        path = _path(todo.pop())
        if path in files or not (root / path).is_file():
            continue
        files.add(path)
        todo.extend(imported_modules(ast.parse((root / path).read_text(encoding="utf-8"))))
    return sorted(path.as_posix() for path in files)


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """The dotted names under `stages.` that a module imports or names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("stages."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stages"):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"stages(\.\w+)+", str(node.value)):
            yield str(node.value)


def _path(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


def stage_modules(stages: dict[str, dict[str, object]]) -> Iterator[tuple[str, str]]:
    """The stages of dvc.yaml that run a package of `stages/`, each with that package's name."""
    for name, stage in stages.items():
        found = _STAGE_COMMAND.search(str(stage.get("cmd", "")))
        if found and _path(f"{found.group(1)}.__main__").is_file():
            yield name, found.group(1)


def code_deps(deps: list[str]) -> list[str]:
    """Of a stage's deps those that are code of ours."""
    return [dep for dep in deps if dep.startswith("stages/") and dep.endswith(".py")]


def main() -> None:
    """Print each stage whose deps are not its import closure; with --write, mend dvc.yaml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the closures into dvc.yaml")
    write = parser.parse_args().write
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 10_000, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(DVC_FILE)
    stale = False
    for name, module in stage_modules(document["stages"]):
        deps, closure = document["stages"][name]["deps"], import_closure(module)
        if set(code_deps(deps)) == set(closure):
            continue
        stale = True
        missing, extra = sorted({*closure} - {*deps}), sorted({*code_deps(deps)} - {*closure})
        print(f"{name}: missing {', '.join(missing) or 'nothing'}; too many {', '.join(extra) or 'none'}")
        deps[:] = [*(dep for dep in deps if dep not in code_deps(deps)), *closure]
    if stale and write:
        yaml.dump(document, DVC_FILE)
    elif stale:
        raise SystemExit("dvc.yaml does not list what the stages import; run `python -m flows.project.closure --write`")


if __name__ == "__main__":
    main()
