"""Reports + samples + the publisher's texts -> the model card: `python -m stages.card`.

The card depends only on stage results and params.yaml, so the same model has the same card, and `parrotflow reproduce`
compares it like any other output.
"""

from stages.card.card import render_card
from stages.card.inputs import read_inputs
from stages.card.params import CardParams, describes_another_corpus, read_destination
from stages.formats.revision.provenance import CARD_FOLDER
from stages.runtime.atomic import atomic_folder
from stages.runtime.errors import UserError
from stages.runtime.section import read_params_file, read_section
from stages.runtime.stage import run_stage


def main() -> None:
    params = read_section("card", CardParams)
    if fault := describes_another_corpus(params.model_dump(), read_params_file()["collect"]["sources"]):
        raise UserError(fault)
    inputs = read_inputs()
    with atomic_folder(CARD_FOLDER) as folder:
        render_card(params, read_destination(), inputs, folder)


if __name__ == "__main__":
    run_stage(main)
