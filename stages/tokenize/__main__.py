"""Documents + tokenizer -> token store: `python -m stages.tokenize`."""

from typing import Any

from stages.formats.documents import CLEAN, require_documents
from stages.formats.model_folder import TOKENIZER
from stages.formats.reports import REPORTS, write_json
from stages.formats.tokens import SPLITS, TOKENS
from stages.runtime.atomic import atomic_folder
from stages.runtime.cache import drop_unused
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage
from stages.tokenize.encode import Fast, Reference, read_vocabulary, write_store
from stages.tokenize.params import TokenizeParams


def main() -> None:
    params = read_section("tokenize", TokenizeParams)
    shards = {split: require_documents(CLEAN / split) for split in SPLITS}
    vocabulary = read_vocabulary(TOKENIZER)

    engine = (Reference if params.engine == "tokenizers" else Fast).name
    report: dict[str, Any] = {"engine": engine}
    for split in SPLITS:
        with atomic_folder(TOKENS / split) as folder:
            report[split] = write_store(shards[split], vocabulary, engine, folder).summary
    write_json(REPORTS / "tokenize.json", report)
    drop_unused()
    print(*(f"{split}: {report[split]['tokens']:,} tokens by {engine}" for split in SPLITS), sep="\n", flush=True)


if __name__ == "__main__":
    run_stage(main)
