"""The files of a model card: `README.md`, and its picture where curves were recorded."""

from pathlib import Path

from stages.formats.revision.layout import CARD, CURVES
from stages.publish.card.curves import draw_curves
from stages.publish.card.page import write_card
from stages.publish.inputs import Inputs
from stages.publish.params import PublishParams


def render_card(params: PublishParams, inputs: Inputs, folder: Path) -> dict[str, Path]:
    """Write the card below `folder`; path in the revision -> file. The same inputs give the same bytes."""
    card, picture = folder / CARD, folder / CURVES
    drawn = {CURVES: picture} if draw_curves(picture) else {}
    card.write_text(write_card(params, inputs, with_curves=bool(drawn)), encoding="utf-8")
    return {CARD: card} | drawn
