"""Publishes to the Hub: a branch per run with a commit for each exported step, the model last; tags; then main.

No reader of a branch or a tag sees half a revision, and what is published twice makes no second commit
(stages/publish/hub/repository.py). `main` moves last, by a commit that copies the model's files on the Hub. The data
set goes to a repository of its own (`publish.dataset_repository`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from huggingface_hub import CommitOperationDelete, DatasetCardData, HfApi

from stages.formats.documents import CLEAN, require_documents
from stages.formats.evaluation.report import Evaluation
from stages.formats.pages import escape, table
from stages.formats.revision.provenance import (
    CARD,
    EVALUATION,
    MAIN,
    NOT_INDEXED,
    PROVENANCE,
    Provenance,
    Receipt,
    is_observed,
    run_branch,
    step_tag,
)
from stages.formats.split_size import SplitSize, by_license, by_source, read_split
from stages.formats.splits import SPLITS, TRAIN, VALIDATION
from stages.formats.tokens import TOKENS
from stages.publish.hub import client
from stages.publish.hub.repository import Repository, Tree, differing
from stages.publish.params import PublishParams
from stages.publish.revision import (
    ExportedStep,
    Gate,
    Revision,
    card_head,
    exported_steps,
    model_title,
    name_revision,
    run_of_model,
)
from stages.runtime.entry import UnavailableError

WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf"}
"""A main branch with such a file holds a model."""


def publish_to_hub(revision: Revision, params: PublishParams, gate: Gate) -> Receipt:
    """Upload a revision and the steps of its run, unless they are there, and let main hold the revision.

    Raises RefusedError if what main holds now is better; UserError if there is no token, write access or connection.
    """
    assert params.repository is not None
    client.configure_clients()
    repository = Repository(client.connect(params.repository), params.repository)
    run, steps = run_of_model(), exported_steps()
    with TemporaryDirectory() as folder:
        others = {
            other: content_of(other, params, Path(folder)) for other in other_repositories(params, repository.api)
        }
        size = sum(content.size for content in [revision, *(step.content for step in steps)])

        def check_gate() -> None:
            head = repository.head(MAIN)
            present = repository.tree(head)
            if differing(present, revision):
                check_not_worse(repository, head, present, gate)

        def prepare() -> None:
            repository.create(private=params.private)
            client.retried(check_gate)

        bounded(repository, 0, prepare)
        # Before the model: `main` moves last, when nothing can fail after it.
        commits = {
            f"{'datasets/' if other.kind == 'dataset' else ''}{other.name}": bounded(
                other, content.size, partial(publish_other, other, content, params.private)
            )
            for other, content in others.items()
        }
        receipt = bounded(repository, size, partial(publish_model, repository, revision, run, steps, gate))
    return receipt.model_copy(update={"others": commits})


def bounded(repository: Repository, size: int, call: Callable[[], client.Answer]) -> client.Answer:
    """The result of a call that sends at most `size` bytes. Errors of the clients and a time limit are messages."""
    limit = client.time_limit(size)
    late = f"{repository.title}: not finished after {limit / 60:.0f} minutes; {client.AGAIN}"
    with client.explained(repository.api, repository.name, repository.setting):
        return client.within(limit, call, late)


def publish_model(
    repository: Repository, revision: Revision, run: str | None, steps: Sequence[ExportedStep], gate: Gate
) -> Receipt:
    """The steps' commits, the model's commit, their tags, then main."""
    name = run or revision.name
    branch, tags = run_branch(name), client.retried(repository.tags)
    wanted = [(step_tag(revision.name, step.number), step.title(name), step.content) for step in steps]
    wanted.append((revision.name, model_title(name, revision), revision))
    if any(tag not in tags for tag, _, _ in wanted):
        repository.branch_once(branch)
    commits = []
    for tag, title, content in wanted:
        commit = tags.get(tag) or repository.commit_once(branch, title, content)
        repository.require(commit, content)
        if tag not in tags:
            repository.tag_once(tag, commit)
        commits.append(commit)
    move_main_branch(repository, commits[-1], revision, gate)
    return Receipt(
        destination="hub",
        location=repository.name,
        revision=revision.name,
        commit=commits[-1],
        run=run,
        steps={step.number: commit for step, commit in zip(steps, commits, strict=False)},
        sha256=revision.sha256,
    )


def check_not_worse(repository: Repository, head: str, present: Tree, gate: Gate) -> None:
    """Raise RefusedError if the commit `head`, with the files `present`, holds a better model."""
    if any(Path(path).suffix in WEIGHT_SUFFIXES for path in present):
        with repository.downloaded(head, present, EVALUATION) as folder:
            gate.check_not_worse(Evaluation.find(folder / EVALUATION), repository.name)


def move_main_branch(repository: Repository, commit: str, revision: Revision, gate: Gate) -> None:
    """Make main hold what a commit holds, which is the revision, instead of the one before, by a commit on it.

    Files of others are kept. Main has the record of the revision's first publication too. Raises RefusedError where
    main holds a better model.
    """
    wanted = client.retried(lambda: repository.tree(commit))

    def move() -> str:
        head = repository.head(MAIN)
        present = repository.tree(head)
        with repository.downloaded(head, present, PROVENANCE) as folder:
            before = Provenance.find(folder / PROVENANCE)
        published = {*before.files, *NOT_INDEXED} if before else set()
        changed, stale = changes(present, wanted), sorted((published & set(present)) - set(wanted))
        if not changed and not stale:
            return head
        if not all(map(is_observed, changed)):
            check_not_worse(repository, head, present, gate)
        edited = edited_there(repository, present, before) if before else set()
        announce(repository.name, present, published - edited.intersection(wanted), wanted)
        copies = repository.copies(commit, wanted, changed, revision)
        return repository.send(MAIN, head, f"Publish {revision.name}", [*copies, *map(CommitOperationDelete, stale)])

    main = client.retried(move)
    if wrong := changes(client.retried(lambda: repository.tree(main)), wanted):
        raise UnavailableError(f"{repository.title}: {', '.join(wrong)} on main differ from {commit}; {client.AGAIN}")


def edited_there(repository: Repository, present: Tree, before: Provenance) -> set[str]:
    """The files on main that are no longer those of the revision that it names, such as a card that was edited."""
    tagged = repository.tags().get(before.revision)
    return set(changes(repository.tree(tagged), present)).intersection(before.files) if tagged else set()


def changes(present: Tree, wanted: Tree) -> list[str]:
    """The files that are missing or differ."""
    return sorted(path for path, file in wanted.items() if path not in present or present[path].blob_id != file.blob_id)


def announce(repository: str, present: Tree, published: set[str], wanted: Tree) -> None:
    """Say what happens to files on main that no earlier publication has put there."""
    foreign = set(present) - published
    if kept := sorted(foreign - set(wanted)):
        print(f"{repository}: main keeps files that were not published from here: {', '.join(kept)}")
    if replaced := sorted(foreign & set(changes(present, wanted))):
        print(f"{repository}: main had its own {', '.join(replaced)}: replaced, still in the repository's history")


def publish_other(repository: Repository, content: Revision, private: bool) -> str:
    """Make main hold the data set, with its content's name as a tag; the tagged commit."""
    repository.create(private=private)

    def put() -> str:
        head = repository.head(MAIN)
        present = repository.tree(head)
        owned = filter(is_shard, present)
        stale = sorted(path for path in owned if path not in content.files)
        if not differing(present, content) and not stale:
            return head
        return repository.commit(MAIN, head, f"Publish {content.name}", content, stale)

    main = client.retried(put)
    repository.require(main, content)
    tagged = client.retried(repository.tags).get(content.name)
    if tagged is None:
        repository.tag_once(content.name, main)
        return main
    repository.require(tagged, content)
    return tagged


def other_repositories(params: PublishParams, api: HfApi) -> list[Repository]:
    """The repository of the data set, if the parameters name one."""
    data_set = params.dataset_repository
    return [Repository(api, data_set, "dataset", "publish.dataset_repository")] if data_set else []


def content_of(repository: Repository, params: PublishParams, folder: Path) -> Revision:
    """The documents with their card, which is written to `folder`; named by the content."""
    files = {f"data/{split}/{shard.name}": shard for split in SPLITS for shard in require_documents(CLEAN / split)}
    card = folder / "dataset.md"
    card.write_text(data_card(params, repository.name), encoding="utf-8")
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
    sources = [row[:3] for row in by_source(split, most=len(split.sources))]
    return (
        f"## {title}\n\n{total}.\n\n"
        f"{table(('licence', 'documents', 'bytes'), by_license(split, most=len(split.licenses)))}\n"
        f"{table(('source', 'documents', 'bytes'), sources)}"
    )
