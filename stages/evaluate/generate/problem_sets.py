"""Opens the sets of problems that params.yaml names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.evaluate.generate.params import FileSet, HubSet, LanguageName
from stages.formats.evaluation.problems import Problem, as_problem, read_problems, require_unique
from stages.runtime.entry import first_line
from stages.runtime.hub import data_set_error


@dataclass(frozen=True, slots=True)
class OpenSet:
    """A set and its problems."""

    name: str
    """The file, or the data set and its revision."""
    language: LanguageName
    stop: tuple[str, ...] | None
    """None: the language's own."""
    problems: list[Problem]


def open_sets(sets: Sequence[FileSet | HubSet]) -> list[OpenSet]:
    """Read all of them. Raises UserError where one cannot be read, or two problems have one task_id."""
    opened = []
    for one in sets:
        if isinstance(one, FileSet):
            name, problems = one.path, read_problems(Path(one.path), one.language)
        else:
            name, problems = f"{one.repository}@{one.revision}", _read_hub(one)
        opened.append(OpenSet(name, one.language, None if one.stop is None else tuple(one.stop), problems))
    if opened:
        require_unique([problem for one in opened for problem in one.problems], "generate.problems.sets")
    return opened


def _read_hub(one: HubSet) -> list[Problem]:
    # A second of imports: only where a data set is read.
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from httpx2 import HTTPError

    name = f"data set `{one.repository}`"
    try:
        rows = load_dataset(one.repository, one.configuration, split=one.split, revision=one.revision or None)
        return [as_problem(row, f"{name}: row {number}", one.language) for number, row in enumerate(rows, start=1)]
    except (DatasetsError, OSError, ValueError, RuntimeError, HTTPError) as error:
        what = f"generate.problems.sets: {name} cannot be read ({first_line(error)})"
        raise data_set_error(what, error, "correct its name, revision or split") from None
