"""`parrotflow table`."""

from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from flows.experiments import results as made
from flows.experiments.experiment import ExperimentName
from flows.experiments.forms import markdown
from flows.run.outcome import AsJson
from stages.runtime.errors import UserError


def table(name: ExperimentName, /, *, as_json: AsJson = False) -> dict[str, Any]:
    """Make an experiment's tables and figures from its recorded runs, and check its claims.

    Parameters
    ----------
    name
        A file in experiments/ without its suffix, or a path.
    """
    results = made.compute(name)
    if {*results.data.frame["state"]} == {"not run"}:
        raise UserError(f"{name}: no run is on record yet; `parrotflow sweep {name}` runs them")
    written, console = made.write_experiment_results(name, results), Console(highlight=False)
    for text in map(markdown, results.tables):
        console.print(Markdown(text) if console.is_terminal else text, markup=False, soft_wrap=not console.is_terminal)
    print("\n".join([*made.summary_lines(results), *map(str, written)]))
    return made.table_facts(name, results)
