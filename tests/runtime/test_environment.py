"""The table of the variables is that of the code and of the page about them."""

import re
from pathlib import Path

from stages.runtime.environment import SET_BY_STAGES, VARIABLES

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "stages/runtime/environment.py"


def test_each_variable_of_the_code_is_in_the_table_and_none_besides() -> None:
    sources = [path for package in ("flows", "stages") for path in (ROOT / package).rglob("*.py") if path != TABLE]
    found = {name for path in sources for name in re.findall(r'"(PARROTFLOW_[A-Z_]*[A-Z])"', path.read_text())}

    assert found == {*VARIABLES, *SET_BY_STAGES}


def test_the_page_has_each_variable_with_its_default() -> None:
    page = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in page.splitlines() if line.startswith("| `")]
    shown = {name: default for names, default in rows for name in re.findall(r"PARROTFLOW_[A-Z_]+", names)}

    assert shown == {name: default for name, (default, _) in VARIABLES.items()}
