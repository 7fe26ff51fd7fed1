"""Model + metrics + provenance -> a folder or the Hugging Face Hub, and a receipt: `python -m stages.publish`.

The Hub's token comes from the environment alone (`HF_TOKEN`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from stages.formats.reports import read_json, write_json
from stages.publish import inputs
from stages.publish.card import write_card
from stages.publish.folder import publish_to_folder
from stages.publish.hub import publish_to_hub
from stages.publish.params import PublishParams
from stages.publish.provenance import observe
from stages.publish.revision import CARD, PROVENANCE, Revision, model_files, name_revision
from stages.runtime.entry import run_stage
from stages.runtime.section import read_section
from stages.runtime.versions import require_locked

RECEIPT = Path("data/receipt.json")


def main() -> None:
    params = read_section("publish", PublishParams)
    require_locked("huggingface_hub")
    with gathered(params) as revision:
        if params.repository is None:
            place = Path(params.folder) / params.name
            publish_to_folder(revision, place)
            receipt = {"destination": "folder", "place": place.as_posix()}
        else:
            receipt = publish_to_hub(revision, params.repository, private=params.private)
    evaluation = read_json(inputs.EVALUATE_REPORT)
    write_json(RECEIPT, receipt | {"revision": revision.name, "sha256": revision.sha256, "evaluation": evaluation})
    print(f"published revision {revision.name} to {receipt['place']}")


@contextmanager
def gathered(params: PublishParams) -> Iterator[Revision]:
    """The revision; its card and its provenance lie in a temporary folder, which is gone afterwards."""
    destination = params.repository or (Path(params.folder) / params.name / "main").as_posix()
    card = write_card(params, inputs.read_inputs(), destination)
    with TemporaryDirectory() as temporary:
        card_file, provenance_file = Path(temporary) / CARD, Path(temporary) / PROVENANCE
        card_file.write_text(card, encoding="utf-8")
        revision = name_revision(model_files(inputs.MODEL) | {CARD: card_file}, provenance_file)
        write_json(provenance_file, observe(revision, inputs.ALL))
        yield revision


if __name__ == "__main__":
    run_stage(main)
