"""The code that each stage depends on, in dvc.yaml: `python -m flows.project.closure` compares, `--write` corrects it.

Code deps are generated, sorted, and come after a stage's data.
"""

import argparse
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq

from flows.plan.code_deps import REMEDY, code_deps, command_closure, stale_stages

DVC_FILE = Path("dvc.yaml")
HEADING = "code: python -m flows.project.closure --write"


def main() -> None:
    """Print each stage whose deps are not its import closure; with --write, correct dvc.yaml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the closures into dvc.yaml")
    write = parser.parse_args().write
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 10_000, True
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(DVC_FILE)
    stale = list(stale_stages(document["stages"]))
    for one in stale:
        print(one)
    if write:
        for stage in document["stages"].values():
            if closure := command_closure(stage.get("cmd")):
                stage["deps"] = _with_code(stage.get("deps", []), closure)
        yaml.dump(document, DVC_FILE)
    elif stale:
        raise SystemExit(f"dvc.yaml does not list what the stages import; {REMEDY}")


def _with_code(deps: list[str], closure: list[str]) -> CommentedSeq:
    data = [dep for dep in deps if dep not in code_deps(deps)]
    result = CommentedSeq([*data, *closure])
    result.yaml_set_comment_before_after_key(len(data), before=HEADING, indent=6)
    return result


if __name__ == "__main__":
    main()
