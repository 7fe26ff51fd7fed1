"""Documents + tokenizer -> token store: `python -m stages.tokenize`.

With `--part BITS` the documents are a part of a corpus, which may lack a split: its store has no documents.
"""

from typing import Any

from stages.formats.documents import CLEAN, require_documents, shard_paths
from stages.formats.model_folder import TOKENIZER
from stages.formats.parts import WHOLE, asked_part
from stages.formats.reports import REPORTS, write_json
from stages.formats.splits import SPLITS, TRAIN
from stages.formats.tokens import TOKENS
from stages.runtime.atomic import atomic_folder
from stages.runtime.cache import drop_unused
from stages.runtime.entry import run_stage
from stages.runtime.section import read_section
from stages.tokenize.encode import Encoding, read_vocabulary, write_store
from stages.tokenize.params import TokenizeParams
from stages.tokenize.parity import choose_engine


def main(part: str = WHOLE) -> None:
    params = read_section("tokenize", TokenizeParams)
    shards = {split: (require_documents if part == WHOLE else shard_paths)(CLEAN / split) for split in SPLITS}
    vocabulary = read_vocabulary(TOKENIZER)

    engine = choose_engine(params.engine, vocabulary.tokenizer_json, shards[TRAIN], params.parity_bytes)
    encoding = Encoding(vocabulary, engine)
    report: dict[str, Any] = {"engine": engine}
    for split in SPLITS:
        with atomic_folder(TOKENS / split) as folder:
            report[split] = write_store(shards[split], encoding, folder).summary
    write_json(REPORTS / "tokenize.json", report)
    for cache in ("tokens", "parity"):
        drop_unused(cache)
    print(*(f"{split}: {report[split]['tokens']:,} tokens by {engine}" for split in SPLITS), sep="\n", flush=True)


if __name__ == "__main__":
    run_stage(lambda: main(asked_part()))
