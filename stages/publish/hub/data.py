"""The data set and the tokenizer in repositories of their own: `publish.dataset_repository`, `tokenizer_repository`."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import DatasetCardData, HfApi, ModelCardData

from stages.formats.documents import CLEAN, require_documents
from stages.formats.pages import escape, table
from stages.formats.revision.layout import CARD
from stages.formats.splits import SPLITS, TRAIN, VALIDATION
from stages.formats.tokens import TOKENS
from stages.publish.card.values import by_license, by_source
from stages.publish.hub.repository import Repository
from stages.publish.inputs import Split, read_split
from stages.publish.params import PublishParams
from stages.publish.revision import Revision, name_revision, tokenizer_files

TITLES = {TRAIN: "The model is trained on", VALIDATION: "Held out to measure it"}


@dataclass(frozen=True, slots=True)
class Offered:
    """What goes to a repository besides the model."""

    repository: Repository
    content: Revision

    @property
    def label(self) -> str:
        """As the Hub's addresses name it: `datasets/owner/name`, `owner/name`."""
        return f"{'datasets/' if self.repository.kind == 'dataset' else ''}{self.repository.name}"

    def owns(self, path: str) -> bool:
        """Whether a file that is there was published from here, so that it goes when the content lacks it: a shard."""
        return self.repository.kind == "dataset" and any(
            PurePosixPath(path).match(f"data/{split}/b*.parquet") for split in SPLITS
        )


def offered(params: PublishParams, api: HfApi, folder: Path) -> list[Offered]:
    """What the parameters ask for; the cards are written to `folder`."""
    found = []
    if params.dataset_repository is not None:
        repository = Repository(api, params.dataset_repository, "dataset", "publish.dataset_repository")
        shards = {f"data/{split}/{shard.name}": shard for split in SPLITS for shard in require_documents(CLEAN / split)}
        card = data_card(params, params.dataset_repository)
        found.append(Offered(repository, with_card(shards, folder / "data.md", card)))
    if params.tokenizer_repository is not None:
        repository = Repository(api, params.tokenizer_repository, "model", "publish.tokenizer_repository")
        card = tokenizer_card(params, params.tokenizer_repository)
        found.append(Offered(repository, with_card(tokenizer_files(), folder / "tokenizer.md", card)))
    return found


def with_card(files: dict[str, Path], card: Path, text: str) -> Revision:
    """The files and their card, named by their content."""
    card.write_text(text, encoding="utf-8")
    return name_revision(files | {CARD: card})


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


def split_tables(title: str, split: Split) -> str:
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
