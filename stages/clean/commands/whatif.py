"""What would another threshold drop? A query over the ledger, nothing is computed or written.

    python -m stages.clean.commands.whatif filters.line_length_maximum=500 filters.comment_share_minimum=0.01

Near-duplicates and contaminated documents are taken as the last run of `clean` found them.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import yaml
from rich.console import Console
from rich.table import Table

from stages.clean.params import CleanParams
from stages.clean.verdicts import CONTAMINATED, NEAR_DUPLICATE, apply_filters, drop_exact_duplicates
from stages.formats.ledger import KEPT, read_ledger
from stages.runtime.entry import UserError, run_stage
from stages.runtime.section import check_section, read_params_file

COMMAND = "data whatif"
"""Under `parrotflow`."""

EXAMPLES = 5


def main() -> None:
    """Answer for the changes that the command line gives."""
    ledger = read_ledger()
    section = read_params_file().get("clean")
    now = check_section("clean", section, CleanParams)
    then = check_section("clean", with_changes(section, sys.argv[1:]), CleanParams)
    before, after = (verdicts_under(ledger, params) for params in (now, then))
    show(ledger, before, after, Console())


def with_changes(section: Any, changes: Sequence[str]) -> dict[str, Any]:
    """The section with `a.b=value` applied; values are YAML. Raises UserError for what is no such change."""
    if not changes:
        raise UserError("give a change, e.g. `python -m stages.clean.commands.whatif filters.line_length_maximum=500`")
    result: dict[str, Any] = yaml.safe_load(yaml.safe_dump(section))
    for change in changes:
        dotted, equals, value = change.partition("=")
        *path, last = dotted.removeprefix("clean.").split(".")
        place: Any = result
        for name in path:
            place = place.get(name) if isinstance(place, dict) else None
        if not equals or not isinstance(place, dict):
            raise UserError(f"{change}: expected KEY=VALUE with a key of params.yaml's section `clean`")
        place[last] = yaml.safe_load(value)
    return result


def verdicts_under(ledger: pd.DataFrame, params: CleanParams) -> pd.Series:
    """Each document's verdict under other parameters."""
    judged = drop_exact_duplicates(apply_filters(ledger, params.filters, params.seed))
    as_before = ledger["verdict"].isin([NEAR_DUPLICATE, CONTAMINATED]) & (judged["verdict"] == KEPT)
    verdicts: pd.Series = judged["verdict"].mask(as_before, ledger["verdict"])
    return verdicts


def show(ledger: pd.DataFrame, before: pd.Series, after: pd.Series, console: Console) -> None:
    """Print what is kept now and then, and what changes: by filter, by licence, with the largest documents."""
    table = Table("", "documents", "bytes")
    for name, part in (
        ("collected", ledger),
        ("kept now", ledger[before == KEPT]),
        ("kept then", ledger[after == KEPT]),
    ):
        table.add_row(name, *_size(part))
    console.print(table)
    for title, rows, verdict in (
        ("would be dropped", (before == KEPT) & (after != KEPT), after),
        ("would be kept", (before != KEPT) & (after == KEPT), before),
    ):
        if rows.any():
            console.print(_table(title, ledger[rows], verdict[rows]))


def _table(title: str, changed: pd.DataFrame, verdict: pd.Series) -> Table:
    table = Table(title, "documents", "bytes")
    table.add_row("in total", *_size(changed))
    for heading, groups in (("by", verdict), ("licence", changed["license"].replace("", "unknown"))):
        for name in sorted(groups.unique()):
            table.add_row(f"{heading} {name}", *_size(changed[groups == name]))
    for row in np.argsort(-changed["bytes"].to_numpy(), kind="stable")[:EXAMPLES]:
        document = changed.iloc[row]
        table.add_row(f"{document['source']} {document['path']}", "", f"{document['bytes']:,}")
    return table


def _size(part: pd.DataFrame) -> tuple[str, str]:
    return f"{len(part):,}", f"{part['bytes'].sum():,}"


if __name__ == "__main__":
    run_stage(main)
