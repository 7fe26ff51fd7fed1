"""Write what publish says of a model, and publish nothing: `python -m stages.publish.render_card FOLDER`.

Writes the card (`README.md`, `curves.png`, `.eval_results/`) and the sources of the data with their licences
(`inputs.json`). `parrotflow reproduce` compares them with what was published.
"""

import argparse
from pathlib import Path

import yaml

from stages.formats.revision.model_index import eval_results, head
from stages.formats.revision.provenance import CARD, CURVES, InputListing
from stages.publish.card.curves import draw_curves
from stages.publish.card.results import metadata
from stages.publish.card.values import filled_card
from stages.publish.inputs import CardInputs, read_inputs
from stages.publish.lock import read_lock, recorded_section
from stages.publish.params import PublishParams
from stages.publish.record.data import sources
from stages.runtime.entry import run_stage
from stages.runtime.section import read_section


def main() -> None:
    """Render into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    render_card(read_section("publish", PublishParams), read_inputs(), folder)
    asked = recorded_section(read_lock(), "collect").get("sources", [])
    InputListing(sources=list(sources(asked)), dependencies=[]).write(folder / "inputs.json")


def render_card(params: PublishParams, inputs: CardInputs, folder: Path) -> dict[str, Path]:
    """Write the card below `folder`; path in the revision -> file. The same inputs give the same bytes."""
    card, picture = folder / CARD, folder / CURVES
    drawn = {CURVES: picture} if draw_curves(picture) else {}
    text = write_card(params, inputs, with_curves=bool(drawn))
    card.write_text(text, encoding="utf-8")
    benchmarks = eval_results([one.model_dump() for one in params.benchmarks], head(text))
    for path, entries in benchmarks.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(yaml.safe_dump(entries, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return {CARD: card} | drawn | {path: folder / path for path in benchmarks}


def write_card(params: PublishParams, inputs: CardInputs, *, with_curves: bool = False) -> str:
    """README.md as the Hub reads it: YAML front matter, then Markdown. With curves it shows `curves.png`."""
    return filled_card(params, inputs, metadata(params, inputs).to_yaml(), with_curves=with_curves)


if __name__ == "__main__":
    run_stage(main)
