"""Ledger + token stores -> data/corpus.html: `python -m stages.corpus_page`."""

from pathlib import Path

from stages.corpus_page.html_report import LEDGER_COLUMNS, html_report
from stages.formats.ledger import read_ledger
from stages.formats.splits import SPLITS
from stages.formats.tokens import TOKENS, TokenStore
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import run_stage

CORPUS_PAGE = Path("data/corpus.html")


def main() -> None:
    stores = {split: TokenStore(TOKENS / split) for split in SPLITS}
    manifests = {split: store.manifest for split, store in stores.items()}
    lengths = {split: store.document_lengths for split, store in stores.items()}
    atomic_write(CORPUS_PAGE, html_report(read_ledger(LEDGER_COLUMNS), manifests, lengths))


if __name__ == "__main__":
    run_stage(main)
