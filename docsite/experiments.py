"""The page of the site with every experiment on record: its question, its claims, its figures and tables."""

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"


def experiments() -> str:
    """Each experiment of `experiments/` that was run, as `parrotflow sweep` stored it."""
    lines = [
        "# Experiments on record",
        "",
        "What `parrotflow sweep NAME` stored in [experiments/](../../experiments/): a table, figure or claim below is "
        "made from the runs in `runs.jsonl` next to it. [How to run one](../how-to/experiments.md).",
        "",
    ]
    for file in sorted(EXPERIMENTS.glob("*.yaml")):
        folder = EXPERIMENTS / file.stem
        if (folder / "tables").is_dir():
            question = yaml.safe_load(file.read_text(encoding="utf-8"))["question"]
            lines += [f"## {file.stem}", "", f"{question} ([{file.name}]({linked(file)}))", "", *result(folder)]
    return "\n".join(lines)


def result(folder: Path) -> Iterator[str]:
    """The claims, figures and tables of an experiment."""
    claims = folder / "claims.json"
    for claim in json.loads(claims.read_text(encoding="utf-8")) if claims.is_file() else ():
        yield f"- {claim['answer']}: {claim['says']} ({claim['because']})"
    yield ""
    for figure in sorted(folder.glob("figures/*.svg")):
        yield from (f"![{figure.stem} of {folder.name}]({linked(figure)})", "")
    for table in sorted(folder.glob("tables/*.md")):
        # The site's Markdown knows no `\\<`, as GitHub's does.
        yield from (table.read_text(encoding="utf-8").strip().replace("\\<", "&lt;"), "")


def linked(path: Path) -> str:
    """As a page of docs/reference/ links to a file of the repository."""
    return f"../../{path.relative_to(ROOT).as_posix()}"
