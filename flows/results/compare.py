"""`parrotflow compare A [B]`: what differs between two runs, and whether the second is better.

Nothing is recomputed: the stage `evaluate` has written the losses of the held-out documents.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape

from flows.plan.changes import both_shown
from flows.results.pages import curve_pictures, write_page
from flows.results.recorded import BITS_PER_BYTE, FIGURES, WORKSPACE, Recorded
from flows.results.sides import open_sides
from flows.run.outcome import AsJson
from flows.run.terminal import columns
from stages.formats.curves import Panel, curves_in
from stages.formats.evaluation.generation import SAMPLES
from stages.formats.evaluation.intervals import mean_difference
from stages.formats.evaluation.report import DOCUMENT_LOSSES, EVALUATE_REPORT
from stages.formats.model_folder import MODEL
from stages.formats.pages import in_digits
from stages.formats.reports import CURVES_FOLDER
from stages.formats.revision.provenance import ancestors, hash_of
from stages.runtime.errors import UserError
from stages.runtime.section import PARAMS_FILE, differences
from stages.runtime.stage_code import FOLDER, StageCode

COMPARE_PAGE = Path("compare.html")

CURVES = {
    "loss (nats per token)": {"training": "training_loss", "held out": "validation_loss"},
    "gradient norm": {"": "gradient_norm"},
}
"""Title of a picture -> label -> curve."""

MAX_SAMPLES, MAX_PROMPT_LINES = 2, 3
"""The number of prompts in the terminal, and of last lines of each; the page has all."""


def differing_inputs(a: Recorded, b: Recorded) -> Iterator[tuple[str, str, str]]:
    """Yield (input, value of A, value of B) for inputs of common stages that differ; code has no values."""
    both = [
        ancestors(side.stages, [str(output) for output in (EVALUATE_REPORT, SAMPLES) if not side.changed_dep(output)])
        for side in (a, b)
    ]
    entries = [[stages[name] for name in both[0] if name in both[1]] for stages in both]
    params = [
        {key: value for entry in side for key, value in entry.get("params", {}).get(str(PARAMS_FILE), {}).items()}
        for side in entries
    ]
    for key, first, second in differences("", *params):
        yield key, *both_shown(first, second)
    deps = ([dep for entry in side for dep in entry.get("deps", [])] for side in entries)
    old, new = ({dep["path"]: hash_of(dep) or "" for dep in listed} for listed in deps)
    for path in sorted({*old, *new} - {*a.outs, *b.outs}):
        contents = [side.read(path) for side in (a, b)] if Path(path).parent == FOLDER else []
        if old.get(path) != new.get(path) and contents and all(contents):
            before, after = (TypeAdapter(StageCode).validate_json(content or b"") for content in contents)
            yield from ((change, "", "") for change in before.changes_to(after))
        elif old.get(path) != new.get(path):
            yield path, old.get(path, "")[:8], new.get(path, "")[:8]


def held_out_differences(a: Recorded, b: Recorded) -> Iterator[dict[str, Any]]:
    """Yield for each held-out set: bits per byte of both, the difference B - A, its paired interval, and the verdict.

    Raises UserError if the documents of a set differ.
    """
    of_a, of_b = losses(a), losses(b)
    for name in [name for name in of_a if name in of_b]:
        ids, others = of_a[name]["id"].tolist(), of_b[name]["id"].tolist()
        if ids != others:
            common = len({*ids} & {*others})
            raise UserError(
                f"{name}: {a.name} and {b.name} were evaluated on different documents ({len(ids)} and {len(others)}, "
                f"{common} in common), so their numbers cannot be compared"
            )
        nats, text_bytes = [side[name]["nats"] for side in (of_a, of_b)], of_a[name]["bytes"]
        bits = [float(side.sum() / text_bytes.sum() / math.log(2)) for side in nats]
        difference, interval = mean_difference(nats[1], nats[0], text_bytes)
        low, high = interval or (-1, 1)
        better = "B is better" if high < 0 else "A is better" if low > 0 else "undecided"
        yield {"set": name, "a": bits[0], "b": bits[1], "difference": difference, "interval_95": interval} | {
            "documents": len(ids),
            "verdict": better,
        }


def losses(side: Recorded) -> dict[str, dict[str, Any]]:
    """Held-out set -> id, bytes and nats of each document for the trained model. Raises UserError if not available."""
    content = side.read(str(DOCUMENT_LOSSES))
    if content is None:
        raise UserError(
            f"{side.name}: the losses of its held-out documents are not in this project's cache: try `dvc fetch`. To "
            "compare with a model that was evaluated elsewhere, list it in evaluate.baselines"
        )
    # Not a Python file: if a thread of pyarrow released it during the interpreter's exit, the process would abort.
    table = pq.read_table(pa.BufferReader(content), filters=[("model", "=", str(MODEL))])
    sets = {name: table.filter(pc.equal(table["set"], name)) for name in dict.fromkeys(table["set"].to_pylist())}
    return {name: {key: rows[key].to_numpy() for key in ("id", "bytes", "nats")} for name, rows in sets.items()}


def samples_of(side: Recorded) -> list[Any]:
    """The completed headers of a run; empty if it has none, or if they are an earlier model's."""
    is_its_own = ancestors(side.stages, [str(SAMPLES)]) and not side.changed_dep(SAMPLES)
    return (is_its_own and side.json(SAMPLES)) or []


def same_prompts(a: Recorded, b: Recorded) -> Iterator[dict[str, str]]:
    """Yield the prompts that both have completed: origin, prompt, and both completions."""
    of_a, of_b = (
        {(sample["source"], sample["path"], sample["prompt"]): sample["body"] for sample in samples_of(side)}
        for side in (a, b)
    )
    for key in [key for key in of_a if key in of_b]:
        yield {"from": f"{key[0]} {key[1]}", "prompt": key[2], "a": of_a[key], "b": of_b[key]}


def panels_of(a: Recorded, b: Recorded) -> Iterator[Panel]:
    """Yield pictures with the curves of both."""
    for title, names in CURVES.items():
        pairs = [(label, side) for label in names for side in (a, b)]
        files = {(label, side.name): side.read(f"{CURVES_FOLDER}/{names[label]}.tsv") for label, side in pairs}
        read = {key: [*curves_in((content or b"").decode(), ".tsv").values()] for key, content in files.items()}
        if curves := {f"{name} {label}".strip(): points[0] for (label, name), points in read.items() if points}:
            yield Panel(title, "", curves)


def comparison(a: Recorded, b: Recorded) -> dict[str, Any]:
    """The whole comparison except curves, as plain values."""
    values = [(name, a.figures.get(name), b.figures.get(name)) for name in FIGURES if name != BITS_PER_BYTE]
    return {
        "a": a.name,
        "b": b.name,
        "changed": [{"what": what, "a": old, "b": new} for what, old, new in differing_inputs(a, b)],
        "held_out": [*held_out_differences(a, b)],
        "figures": [{"what": name, "a": old, "b": new} for name, old, new in values if (old, new) != (None, None)],
        "samples": [*same_prompts(a, b)],
    }


def show_comparison(a: str, b: str = WORKSPACE, /, *, as_json: AsJson = False) -> dict[str, Any]:
    """Show what differs between two runs and which is better; compare.html adds curves and samples.

    Parameters
    ----------
    a
        The number of a run in `parrotflow log`, a published revision, a commit, a run of a sweep, or a folder.
    b
        What to compare with; the default is the last run of this workspace.
    """
    sides = open_sides(a, b)
    facts = comparison(*sides)
    write_page(COMPARE_PAGE, **facts, pictures=curve_pictures(panels_of(*sides)))
    console, names = Console(highlight=False), (facts["a"], facts["b"])
    changed, figures = columns("what differs", *names), columns("size and speed", *names)
    for row in facts["changed"]:
        changed.add_row(*(escape(row[key]) for key in ("what", "a", "b")))
    for row in facts["figures"]:
        figures.add_row(row["what"], *("" if row[key] is None else in_digits(row[key]) for key in ("a", "b")))
    bits = columns("bits per byte", f"A: {names[0]}", f"B: {names[1]}", "difference", "95 % interval", "documents")
    for row in facts["held_out"]:
        ends = ", ".join(f"{end:+.4f}" for end in row["interval_95"] or ()) or "none: too few documents"
        texts = (f"{row['a']:.4f}", f"{row['b']:.4f}", f"{row['difference']:+.4f}", ends, str(row["documents"]))
        bits.add_row(escape(row["set"]), *texts)
    console.print(changed if changed.rows else "The same parameters, code and data.", "", figures, "", bits, sep="\n")
    console.print("\n".join(f"{row['set']}: {row['verdict']}" for row in facts["held_out"]), markup=False)
    if not facts["samples"]:
        console.print("\nNo samples of both models: `parrotflow run generate` writes them.")
    for sample in facts["samples"][:MAX_SAMPLES]:
        end = "\n".join(sample["prompt"].splitlines()[-MAX_PROMPT_LINES:])
        console.print(f"\n[bold]{escape(sample['from'])}[/]\n[dim]{escape(end)}[/]")
        for name, body in zip(names, (sample["a"], sample["b"]), strict=True):
            console.print(f"[blue]{escape(name)} │[/]{escape(body)}")
    console.print(f"\nWith curves and all samples: {COMPARE_PAGE}")
    return facts
