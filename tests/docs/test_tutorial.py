"""The tutorial's commands, run one after the other on a tiny corpus and model: each prints what the page shows.

What is shown was printed with the default corpus; numbers, ids and answers differ, and all else must be the same.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.flows.small_pipeline import environment, make_pipeline
from tests.flows.toy import git
from tests.small_project import ROOT

pytestmark = pytest.mark.acceptance


PAGE = (ROOT / "docs/tutorial/first-experiment.md").read_text(encoding="utf-8")
TINY = {"train.max_steps: 100": "train.max_steps: 6"}


def sessions() -> list[tuple[str, list[str]]]:
    """Each command of the page, with the lines that it prints."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            found.append((command, lines))
    return found


def shape(line: str) -> str:
    """A line without what differs between a tiny model and the default one: numbers, ids, answers, bold."""
    line = re.sub(r"\b[0-9a-f]{8,}\b", "ID", line.replace("**", "").replace("\\textbf", ""))
    line = re.sub(r"\\?< (?=0)", "", line)  # a p value that is too small to print
    line = re.sub(r"^(holds|does not hold|undecided|cannot be said):", "ANSWER:", line)
    line = re.sub(r"(?<![\w.])[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "0", line)
    return " ".join(re.sub(r"[{}]", "", line).split())


def test_each_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    folder = make_pipeline(tmp_path / "project")
    (experiment,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for default, tiny in TINY.items():
        assert default in experiment
        experiment = experiment.replace(default, tiny)
    (folder / "experiments").mkdir(exist_ok=True)
    (folder / "experiments/rates.yaml").write_text(experiment, encoding="utf-8")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a question")
    variables = environment(folder)

    for command, shown in sessions():
        done = subprocess.run(
            ["bash", "-ec", command], cwd=folder, env=os.environ | variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        printed = {shape(line) for line in done.stdout.splitlines()}
        missing = [line for line in shown if line.strip() not in ("", "...") and shape(line) not in printed]
        assert not missing, f"{command}\n{missing}\n{done.stdout}"

    assert len(sessions()) == 3
