"""AGENTS.md is short, and its commands, paths and names are true."""

import re

from cyclopts import App

from benchmarks.default_run import RECORD
from flows.cli import app
from flows.experiments.cells import cells_of, read_experiment
from stages.formats.reports import read_json
from stages.runtime.errors import EXIT_CONTINUE, EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_USER_ERROR
from stages.runtime.section import flatten, read_params_file, value_at
from tests.small_project import ROOT

AGENTS = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"`([^`\n]+)`", AGENTS)


def test_it_is_one_page_that_contributing_names() -> None:
    assert len(AGENTS.splitlines()) <= 60
    assert "AGENTS.md" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_command_exists_with_its_options() -> None:
    commands = [words.split()[1:] for words in QUOTED if words.startswith("parrotflow ")]

    assert len({words[0] for words in commands}) >= 6
    for first, *others in commands:
        command: App = app[first]
        options = {name for argument in command.assemble_argument_collection() for name in argument.names}
        assert {word for word in others if word.startswith("--")} <= options, first
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {words.split()[1] for words in QUOTED if words.startswith("make ")} <= set(targets)


def test_its_times_are_those_of_the_default_run_on_record() -> None:
    ended = "\n".join(read_json(RECORD)["ended_with"])
    (total,) = re.findall(r"^time +(\d+) s$", ended, re.MULTILINE)
    (training,) = re.findall(r"^train +ran +([\d.]+)$", ended, re.MULTILINE)

    assert re.findall(r"\d+ s\b", AGENTS) == [f"{total} s", f"{float(training):.0f} s"]


def test_every_path_is_there_or_is_made_by_a_run() -> None:
    made = ("data/", "model/", "reports/", "dvc.lock", "experiments/research/")
    paths = {word for word in QUOTED if re.fullmatch(r"[\w.-]*/[\w./-]*|\w+\.(yaml|md|lock)", word)}

    assert len(paths) > 10
    assert [path for path in paths if not path.startswith(made) and not (ROOT / path).exists()] == []


def test_every_parameter_and_exit_code_is_that_of_the_code() -> None:
    values = read_params_file(ROOT / "params.yaml")

    assert value_at(values, "clean.split")
    assert "train.max_steps" in flatten(values)
    said = dict(re.findall(r"\b(\d+) (done|failed|wrong input|no network|stopped|refused)", AGENTS))
    codes = {"2": EXIT_USER_ERROR, "69": EXIT_UNAVAILABLE, "75": EXIT_CONTINUE, "77": EXIT_REFUSED}
    assert said.keys() == {"0", "1", *codes}
    assert all(int(text) == code for text, code in codes.items())


def test_the_research_experiment_has_the_baseline_first_four_seeds_and_a_claim_for_each_idea() -> None:
    experiment = read_experiment(str(ROOT / "experiments/research.yaml"))
    cells = cells_of("research", experiment)

    levels = list(dict.fromkeys(cell.levels["idea"] for cell in cells))
    assert levels[0] == "baseline"
    assert len(cells) == 4 * len(levels)
    assert {dict(claim.holds_if[0].levels)["idea"][0] for claim in experiment.claims} == set(levels[1:])
