"""The data set that is published to the Hub: the cleaned documents, with a card."""

from pathlib import Path, PurePosixPath

from huggingface_hub import DatasetCardData

from stages.formats.documents import CLEAN, require_documents
from stages.formats.pages import escape, table
from stages.formats.revision.provenance import CARD
from stages.formats.sources import SplitSize, by_license, by_source, read_split
from stages.formats.tokens import SPLITS, TOKENS, TRAIN, VALIDATION
from stages.publish.params import PublishParams
from stages.publish.revision import Revision, card_head, name_revision


def data_set_content(params: PublishParams, repository: str, folder: Path) -> Revision:
    """The documents with their card, which is written to `folder`; named by their content."""
    files = {f"data/{split}/{shard.name}": shard for split in SPLITS for shard in require_documents(CLEAN / split)}
    card = folder / CARD
    card.write_text(data_card(params, repository), encoding="utf-8")
    return name_revision(files | {CARD: card})


def is_shard(path: str) -> bool:
    """Whether a file of a data set was published from here, so that it goes when the content lacks it."""
    return any(PurePosixPath(path).match(f"data/{split}/b*.parquet") for split in SPLITS)


def data_card(params: PublishParams, repository: str) -> str:
    """README.md of the data set: how to load it, and what it holds by licence and by source."""
    files = [{"split": split, "path": f"data/{split}/*.parquet"} for split in SPLITS]
    head = card_head()
    metadata = DatasetCardData(
        language=head.get("language"),
        license="other",
        license_name="by-document",
        pretty_name=f"Documents of {params.name}",
        tags=head.get("tags"),
        task_categories=["text-generation"],
        configs=[{"config_name": "default", "data_files": files}],
    )
    titles = {TRAIN: "The model is trained on", VALIDATION: "Held out to measure it"}
    sections = "\n".join(split_tables(titles[split], read_split(TOKENS / split)) for split in SPLITS)
    return (
        f"---\n{metadata.to_yaml()}\n---\n\n# Documents of {escape(params.name)}\n\n"
        "Collected, filtered, deduplicated and split. Each row is a document: `id` (sha256 of the text), `source`, "
        "`revision` and `path` (where it comes from), `license` (SPDX; empty where none is stated), `text`. "
        "The documents keep the licences of their sources.\n\n"
        f'```python\nfrom datasets import load_dataset\n\ndocuments = load_dataset("{repository}")\n```\n\n{sections}'
    )


def split_tables(title: str, split: SplitSize) -> str:
    """One split's documents by licence and by source, the largest first."""
    total = f"{split.total.documents:,} documents, {split.total.bytes:,} bytes of text, {split.tokens:,} tokens"
    return (
        f"## {title}\n\n{total}.\n\n"
        f"{table(('licence', 'documents', 'bytes'), by_license(split))}\n"
        f"{table(('source', 'documents', 'bytes', 'licence'), by_source(split))}"
    )
