"""The card's data statement: what the model was trained and evaluated on, by licence and by source."""

from collections.abc import Mapping
from typing import Any

from stages.formats.markdown import escape, table
from stages.publish.card.values import flat, shown
from stages.publish.inputs import Amount, Inputs, Split

ROWS_SHOWN = 50

NO_LICENSE = "none stated"


def data(inputs: Inputs) -> str:
    """Counts, cleaning, and a table by licence and by source for each split."""
    dropped = inputs.clean["dropped"]
    left_out = sum(entry["documents"] for entry in dropped.values())
    masked = [f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(inputs.clean["masked"].items()) if count]
    reasons = f" ({', '.join(map(escape, sorted(dropped)))})" if dropped else ""
    return (
        "## Data\n\n"
        f"{inputs.clean['documents']:,} documents were collected; filters dropped {left_out:,}{reasons}. "
        f"{'Masked: ' + escape(', '.join(masked)) + '. ' if masked else ''}"
        f"Trained on {inputs.train.total.documents:,} documents ({inputs.train.tokens:,} tokens), evaluated on "
        f"{inputs.validation.total.documents:,} ({inputs.validation.tokens:,} tokens).\n\n"
        f"{cleaning(inputs.recorded.cleaning)}"
        f"{split_tables('Trained on', inputs.train)}\n"
        f"{split_tables('Held out', inputs.validation)}"
    )


def cleaning(recorded: Mapping[str, Any]) -> str:
    """How duplicates and evaluation data were removed, by the parameters that dvc.lock records."""
    if not recorded:
        return "How duplicates and evaluation data were removed is not recorded in dvc.lock.\n\n"
    near, decontamination = recorded.get("near_duplicates"), recorded.get("decontamination")
    statements = [
        "Documents with identical text are kept once.",
        f"Near-duplicates were removed by MinHash ({_settings(near)})."
        if near
        else "Near-duplicates were not removed.",
        f"Documents that contain text of evaluation sets were removed ({_settings(decontamination)})."
        if decontamination
        else "The data was not compared with public evaluation sets (no decontamination).",
    ]
    return " ".join(statements) + "\n\n"


def _settings(values: Any) -> str:
    return escape(", ".join(f"{name}: {shown(value)}" for name, value in flat(values)))


def split_tables(title: str, split: Split) -> str:
    """One split's text by licence and by source, the largest first."""
    licenses = {name or NO_LICENSE: amount for name, amount in split.licenses.items()}
    sources = {f"{source} {revision}".strip(): amount for (source, revision), amount in split.sources.items()}
    licenses_of = {
        f"{source} {revision}".strip(): ", ".join(sorted(name or NO_LICENSE for name in names))
        for (source, revision), names in split.licenses_of.items()
    }
    rows = [(*row, licenses_of.get(row[0], "")) for row in amounts(sources)]
    return (
        f"### {title}\n\n{table(('licence', 'documents', 'bytes'), amounts(licenses))}\n"
        f"{table(('source', 'documents', 'bytes', 'licence'), rows)}"
    )


def amounts(named: Mapping[str, Amount]) -> list[tuple[str, str, str]]:
    """Rows of a table, the largest first; after `ROWS_SHOWN` the rest is summed up in one."""
    ordered = sorted(named.items(), key=lambda item: (-item[1].bytes, item[0]))
    rows = [(name, f"{amount.documents:,}", f"{amount.bytes:,}") for name, amount in ordered[:ROWS_SHOWN]]
    rest = [amount for _, amount in ordered[ROWS_SHOWN:]]
    if rest:
        documents, size = sum(amount.documents for amount in rest), sum(amount.bytes for amount in rest)
        rows.append((f"{len(rest):,} more", f"{documents:,}", f"{size:,}"))
    return rows
