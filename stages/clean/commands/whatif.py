"""What would other parameters of `clean` keep? All verdicts under both, and nothing of the results is written.

    python -m stages.clean.commands.whatif filters.line_length_maximum=500 near_duplicates.similarity=0.7

It judges the collected documents as the stage does, near-duplicates, masks and the split included. Features and
signatures come from the shard cache; what is not there is computed and kept there.
"""

import copy
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from ruamel.yaml.error import YAMLError

from stages.clean.judge import Judgement, check_splits, judge
from stages.clean.params import CleanParams
from stages.formats.documents import DOCUMENTS, KEPT, require_documents
from stages.formats.tokens import SPLITS
from stages.runtime.errors import UserError, visible
from stages.runtime.section import as_dvc_reads, check_section, read_params_file
from stages.runtime.stage import run_stage

COMMAND = "data whatif"
"""Under `parrotflow`."""

EXAMPLES = 5


def main() -> None:
    """Answer for the changes that the command line gives."""
    shards = require_documents(DOCUMENTS)
    section = read_params_file().get("clean")
    now = check_section("clean", section, CleanParams)
    then = check_section("clean", with_changes(section, sys.argv[1:]), CleanParams)
    before, after = (judge(shards, params) for params in (now, then))
    console = Console()
    show(before, after, console)
    try:
        check_splits(after.ledger, then.split)
    except UserError as error:
        console.print(f"The stage would fail: {error}", markup=False)


def with_changes(section: Any, changes: Sequence[str]) -> dict[str, Any]:
    """The section with `a.b=value` applied; values are YAML. Raises UserError for what is no such change."""
    if not changes:
        raise UserError("give a change, e.g. `python -m stages.clean.commands.whatif filters.line_length_maximum=500`")
    result: dict[str, Any] = copy.deepcopy(section)
    for change in changes:
        dotted, equals, value = change.partition("=")
        *path, last = dotted.removeprefix("clean.").split(".")
        inner: Any = result
        for name in path:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if not equals or not isinstance(inner, dict):
            raise UserError(f"{change}: expected KEY=VALUE with a key of params.yaml's section `clean`")
        try:
            inner[last] = as_dvc_reads(value)
        except YAMLError as error:
            raise UserError(f"{change}: not a YAML value: {' '.join(str(error).split())}") from None
    return result


def show(before: Judgement, after: Judgement, console: Console) -> None:
    """Print what is kept now and then, and what changes: by filter, by licence, with the largest documents."""
    table = Table("", "documents", "bytes")
    table.add_row("collected", *_documents_and_bytes(before.ledger))
    for time, ledger in (("now", before.ledger), ("then", after.ledger)):
        table.add_row(f"kept {time}", *_documents_and_bytes(ledger[ledger["verdict"] == KEPT]))
        for split in SPLITS:
            table.add_row(f"{split} {time}", *_documents_and_bytes(ledger[ledger["split"] == split]))
    console.print(table)
    was_kept, is_kept = before.ledger["verdict"] == KEPT, after.ledger["verdict"] == KEPT
    for title, rows, judged in (
        ("would be dropped", was_kept & ~is_kept, after),
        ("would be kept", ~was_kept & is_kept, before),
    ):
        if rows.any():
            console.print(_table(title, rows, judged))


def _table(title: str, rows: "pd.Series[bool]", judged: Judgement) -> Table:
    changed = judged.ledger[rows]
    table = Table(title, "documents", "bytes")
    table.add_row("in total", *_documents_and_bytes(changed))
    for heading, groups in (("by", changed["verdict"]), ("licence", changed["license"].replace("", "unknown"))):
        for name in sorted(groups.unique()):
            table.add_row(escape(f"{heading} {name}"), *_documents_and_bytes(changed[groups == name]))
    for row in np.argsort(-changed["bytes"].to_numpy(), kind="stable")[:EXAMPLES]:
        document = changed.iloc[row]
        because = f" ({document['because']})" * bool(document["because"])
        name = f"{document['source']} {document['path']}{because}"
        table.add_row(escape(visible(name)), "", f"{document['bytes']:,}")
    return table


def _documents_and_bytes(part: pd.DataFrame) -> tuple[str, str]:
    return f"{len(part):,}", f"{part['bytes'].sum():,}"


if __name__ == "__main__":
    run_stage(main)
