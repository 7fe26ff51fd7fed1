"""The code that each stage depends on, in dvc.yaml: `python -m flows.project.closure` compares, `--write` corrects it.

Code deps are generated, sorted, and come after a stage's data.
"""

import argparse
from pathlib import Path

from ruamel.yaml.comments import CommentedSeq

from flows.plan.code_deps import REMEDY, code_deps, command_closure, stale_stages
from flows.project import yaml_text
from stages.runtime.atomic import atomic_write

DVC_FILE = Path("dvc.yaml")
HEADING = "code: python -m flows.project.closure --write"


def main() -> None:
    """Print each stage whose deps are not its import closure; with --write, correct dvc.yaml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the closures into dvc.yaml")
    write = parser.parse_args().write
    document = yaml_text.load(DVC_FILE.read_text(encoding="utf-8"))
    stale = list(stale_stages(document["stages"]))
    for one in stale:
        print(one)
    if write:
        for stage in document["stages"].values():
            if closure := command_closure(stage.get("cmd")):
                stage["deps"] = _with_code(stage.get("deps", []), closure)
        atomic_write(DVC_FILE, yaml_text.dump(document))
    elif stale:
        raise SystemExit(f"dvc.yaml does not list what the stages import; {REMEDY}")


def _with_code(deps: list[str], closure: list[str]) -> CommentedSeq:
    data = [dep for dep in deps if dep not in code_deps(deps)]
    result = CommentedSeq([*data, *closure])
    result.yaml_set_comment_before_after_key(len(data), before=HEADING, indent=6)
    return result


if __name__ == "__main__":
    main()
