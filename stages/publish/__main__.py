"""Model + card + record -> a folder or the Hugging Face Hub, and a receipt: `python -m stages.publish`.

The Hub's token comes from the environment alone (`HF_TOKEN`). Publishing is an effect: DVC never restores it from its
cache, and a temporary workspace of an experiment publishes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from stages.formats.evaluation.report import Evaluation
from stages.formats.model_folder import MODEL
from stages.formats.revision.provenance import (
    NOT_INDEXED,
    PROVENANCE,
    REVISIONS,
    Provenance,
    Receipt,
    is_observed,
    publication_receipt,
)
from stages.publish.folder import publish_to_folder, require_intact
from stages.publish.lock import in_temporary_workspace
from stages.publish.params import PublishParams
from stages.publish.record import attested, gather_record
from stages.publish.revision import (
    Gate,
    Revision,
    card_files,
    card_head,
    model_files,
    name_revision,
    prompt_of,
)
from stages.runtime.entry import RefusedError, run_stage
from stages.runtime.section import read_section


def main() -> None:
    params = read_section("publish", PublishParams)
    receipt_file = publication_receipt(params.folder, params.name)
    if in_temporary_workspace(Path.cwd()):
        Receipt(destination="none", location="", reason="temporary experiment workspace").write(receipt_file)
        print("not published: this is an experiment's temporary workspace; apply the experiment and run `dvc repro`")
        return
    gate = Gate(params.gate, Evaluation.read())
    gate.check_limit()
    with gathered(params) as revision, without_receipt_of_another(receipt_file, revision):
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


@contextmanager
def gathered(params: PublishParams) -> Iterator[Revision]:
    """The revision with its record: that of its first publication here, or one that is gathered now.

    A new record is in a temporary folder, which is deleted afterwards.
    """
    with TemporaryDirectory() as temporary:
        revision = name_revision(model_files(MODEL) | card_files())
        kept = Path(params.folder) / params.name / REVISIONS / revision.name
        yield with_kept_record(revision, kept) if kept.is_dir() else gather_record(revision, params, Path(temporary))


def with_kept_record(revision: Revision, kept: Path) -> Revision:
    """The revision with the record of its first publication; signed now if a key is named.

    Raises UserError if that is not as it was published.
    """
    require_intact(kept)
    attested(kept / PROVENANCE)
    record = [path for path in Provenance.read(kept / PROVENANCE).files if is_observed(path)]
    files = {path: kept / path for path in (*record, *sorted(NOT_INDEXED)) if (kept / path).is_file()}
    return Revision(revision.name, revision.files | files, revision.sha256)


if __name__ == "__main__":
    run_stage(main)
