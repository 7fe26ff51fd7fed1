"""Documents + tokenizer -> token store: `python -m stages.tokenize`."""

from pathlib import Path
from typing import Any

from stages.formats.documents import require_documents
from stages.formats.ledger import read_ledger
from stages.formats.reports import write_json
from stages.formats.tokens import Manifest, TokenStore
from stages.runtime.atomic import atomic_folder, atomic_write
from stages.runtime.entry import run_stage
from stages.runtime.section import read_section
from stages.runtime.shard_cache import drop_unused
from stages.runtime.versions import require_locked
from stages.tokenize.encode import Encoding, write_store
from stages.tokenize.page import LEDGER_COLUMNS, page
from stages.tokenize.params import TokenizeParams
from stages.tokenize.parity import choose_engine
from stages.tokenize.vocabulary import read_vocabulary

CLEAN = Path("data/clean")
TOKENIZER = Path("data/tokenizer")
TOKENS = Path("data/tokens")
REPORT = Path("reports/tokenize.json")
PAGE = Path("reports/corpus.html")


def main() -> None:
    params = read_section("tokenize", TokenizeParams)
    require_locked("fastokens", "numpy", "pandas", "pyarrow", "tokenizers")
    sides = {side: require_documents(CLEAN / side) for side in ("train", "validation")}
    vocabulary = read_vocabulary(TOKENIZER)

    engine = choose_engine(params.engine, vocabulary.tokenizer_json, sides["train"], params.parity_bytes)
    encoding = Encoding(vocabulary, engine)
    manifests = {}
    for side, shards in sides.items():
        with atomic_folder(TOKENS / side) as folder:
            manifests[side] = write_store(shards, encoding, folder)
    lengths = {side: TokenStore(TOKENS / side).document_lengths for side in sides}
    ledger = read_ledger(CLEAN / "ledger", LEDGER_COLUMNS)
    atomic_write(PAGE, page(ledger, manifests, lengths))
    write_json(REPORT, {"engine": engine} | {side: summary(manifest) for side, manifest in manifests.items()})
    drop_unused("tokens")


def summary(manifest: Manifest) -> dict[str, Any]:
    """One side's metrics."""
    return {
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "bytes": manifest.bytes,
        "bytes_per_token": round(manifest.bytes / manifest.tokens, 4),
    }


if __name__ == "__main__":
    run_stage(main)
