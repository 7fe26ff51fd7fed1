"""The table of the variables is that of the code."""

import re
from pathlib import Path

from stages.runtime.environment import SET_BY_STAGES, VARIABLES

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "stages/runtime/environment.py"


def test_each_variable_of_the_code_is_in_the_table_and_none_besides() -> None:
    sources = [path for package in ("flows", "stages") for path in (ROOT / package).rglob("*.py") if path != TABLE]
    found = {name for path in sources for name in re.findall(r'"(PARROTFLOW_[A-Z_]*[A-Z])"', path.read_text())}

    assert found == {*VARIABLES, *SET_BY_STAGES}
