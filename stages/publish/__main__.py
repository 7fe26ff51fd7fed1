"""Model + card + record -> a folder or the Hugging Face Hub, and a receipt: `python -m stages.publish`.

The Hub's token comes from the environment alone (`HF_TOKEN`). Publishing is an effect: DVC never restores it from its
cache, and a temporary workspace of an experiment publishes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from stages.formats.evaluation.report import Evaluation
from stages.formats.revision.provenance import Receipt, publication_receipt
from stages.publish.folder import publish_to_folder
from stages.publish.lock import in_temporary_workspace
from stages.publish.params import PublishParams
from stages.publish.revision import (
    Gate,
    Revision,
    card_head,
    gather_record,
    name_revision,
    prompt_of,
    published_files,
)
from stages.runtime.errors import RefusedError
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
        with without_receipt_of_another(receipt_file, revision):
            receipt = publish(revision, params, gate)
            receipt.model_copy(update={"prompt": prompt_of(card_head())}).write(receipt_file)
    print(f"published revision {receipt.revision} to {receipt.location}")


@contextmanager
def without_receipt_of_another(path: Path, revision: Revision) -> Iterator[None]:
    """While `main` moves there is no receipt of another revision: after a crash DVC runs this stage again.

    A refusal moves nothing, so the receipt is put back.
    """
    before = Receipt.find(path)
    if before is None or before.revision != revision.name:
        path.unlink(missing_ok=True)
    try:
        yield
    except RefusedError:
        if before is not None:
            before.write(path)
        raise


def publish(revision: Revision, params: PublishParams, gate: Gate) -> Receipt:
    """Publish to the destination that the parameters name."""
    if params.repository is None:
        return publish_to_folder(revision, Path(params.folder) / params.name, gate)
    from stages.publish.hub import publish_to_hub  # a folder needs no network, nor the time of this import

    return publish_to_hub(revision, params, gate)


if __name__ == "__main__":
    run_stage(main)
