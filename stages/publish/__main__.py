"""Model + card + record -> a folder or the Hugging Face Hub, and a receipt: `python -m stages.publish`.

The Hub's token comes only from the environment (`HF_TOKEN`). Publishing is a side effect: DVC never restores it from
its cache, and the temporary workspace of an experiment publishes nothing. DVC deletes the receipt before the stage
runs, so it runs the stage again after a crash or a refusal.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from stages.formats.evaluation.report import Evaluation
from stages.formats.revision.provenance import Receipt, publication_receipt
from stages.publish.folder import publish_to_folder
from stages.publish.lock import in_temporary_workspace
from stages.publish.params import PublishParams
from stages.publish.revision import Gate, Revision, card_head, gather_record, name_revision, prompt_of, published_files
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage


def main() -> None:
    params = read_section("publish", PublishParams)
    receipt_file = publication_receipt(params.folder, params.name)
    if in_temporary_workspace(Path.cwd()):
        Receipt(destination="none", location="").write(receipt_file)
        print("not published: this is an experiment's temporary workspace; apply the experiment and run `dvc repro`")
        return
    gate = Gate(params.gate, Evaluation.read())
    gate.check_limit()
    named = name_revision(published_files())
    with TemporaryDirectory() as folder:
        revision = gather_record(named, params, Path(folder))
        receipt = publish(revision, params, gate)
        receipt.model_copy(update={"prompt": prompt_of(card_head())}).write(receipt_file)
    print(f"published revision {receipt.revision} to {receipt.location}")


def publish(revision: Revision, params: PublishParams, gate: Gate) -> Receipt:
    """Publish to the destination in the parameters."""
    if params.repository is None:
        return publish_to_folder(revision, Path(params.folder) / params.name, gate)
    from stages.publish.hub import publish_to_hub  # slow to import, and not needed for a folder

    return publish_to_hub(revision, params, gate)


if __name__ == "__main__":
    run_stage(main)
