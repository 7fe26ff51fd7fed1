"""The data set and the tokenizer in repositories of their own: `publish.dataset_repository`, `tokenizer_repository`."""

from pathlib import Path, PurePosixPath

from huggingface_hub import DatasetCardData, HfApi, ModelCardData

from stages.formats.documents import CLEAN, require_documents
from stages.formats.pages import escape, table
from stages.formats.revision.provenance import CARD
from stages.formats.splits import SPLITS, TRAIN, VALIDATION
from stages.formats.tokens import TOKENS
from stages.publish.card.values import by_license, by_source
from stages.publish.hub.repository import Repository
from stages.publish.inputs import SplitSize, read_split
from stages.publish.params import PublishParams
from stages.publish.revision import Revision, name_revision, tokenizer_files

TITLES = {TRAIN: "The model is trained on", VALIDATION: "Held out to measure it"}


def other_repositories(params: PublishParams, api: HfApi) -> list[Repository]:
    """Those of the data set and of the tokenizer, if the parameters name them."""
    found = []
    if params.dataset_repository is not None:
        found.append(Repository(api, params.dataset_repository, "dataset", "publish.dataset_repository"))
    if params.tokenizer_repository is not None:
        found.append(Repository(api, params.tokenizer_repository, "model", "publish.tokenizer_repository"))
    return found


def content_of(repository: Repository, params: PublishParams, folder: Path) -> Revision:
    """What goes to one of these, with its card, which is written to `folder`; named by the content."""
    if repository.kind == "dataset":
        files = {f"data/{split}/{shard.name}": shard for split in SPLITS for shard in require_documents(CLEAN / split)}
        text = data_card(params, repository.name)
    else:
        files, text = tokenizer_files(), tokenizer_card(params, repository.name)
    card = folder / f"{repository.kind}.md"
    card.write_text(text, encoding="utf-8")
    return name_revision(files | {CARD: card})


def is_shard(path: str) -> bool:
    """Whether a file of a data set was published from here, so that it goes when the content lacks it."""
    return any(PurePosixPath(path).match(f"data/{split}/b*.parquet") for split in SPLITS)


def data_card(params: PublishParams, repository: str) -> str:
    """README.md of the data set: how to load it, and what it holds by licence and by source."""
    splits = {split: read_split(TOKENS / split) for split in SPLITS}
    metadata = DatasetCardData(
        language=params.language,
        license="other",
        license_name="by-document",
        pretty_name=f"Documents of {params.name}",
        tags=params.tags,
        task_categories=["text-generation"],
        configs=[
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": f"data/{split}/*.parquet"} for split in SPLITS],
            }
        ],
    )
    sections = "\n".join(split_tables(TITLES[name], split) for name, split in splits.items())
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
    sources = [row[:3] for row in by_source(split, most=len(split.sources))]
    return (
        f"## {title}\n\n{total}.\n\n"
        f"{table(('licence', 'documents', 'bytes'), by_license(split, most=len(split.licenses)))}\n"
        f"{table(('source', 'documents', 'bytes'), sources)}"
    )


def tokenizer_card(params: PublishParams, repository: str) -> str:
    """README.md of the tokenizer."""
    metadata = ModelCardData(
        language=params.language, license=params.license, library_name="transformers", tags=[*params.tags, "tokenizer"]
    )
    return (
        f"---\n{metadata.to_yaml()}\n---\n\n# Tokenizer of {escape(params.name)}\n\n"
        "```python\nfrom transformers import AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{repository}")\n```\n'
    )
