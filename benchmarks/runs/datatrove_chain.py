"""What benchmarks/chain.py has datatrove do, run by a Python that has it: `python datatrove_chain.py FOLDER`.

FOLDER has `rows/*.jsonl` and `tokenizer.json`; `kept/`, `deduplicated/` and `tokens/` are written. Words are what white
space separates, which is the rule of parrotflow's filters and what costs datatrove least.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

TASKS = 2


def split(_: object, text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def main(folder: Path) -> None:
    """Read, filter, drop near-duplicates, encode."""

    def read(name: str) -> Any:
        return readers.JsonlReader(str(folder / name))

    def write(name: str) -> Any:
        return writers.JsonlWriter(str(folder / name))

    module: Any = import_module
    base = module("datatrove.utils.word_tokenizers").WordTokenizer
    words = type("Words", (base,), dict.fromkeys(base.__abstractmethods__) | {"word_tokenize": split})()
    filters, dedup = module("datatrove.pipeline.filters"), module("datatrove.pipeline.dedup")
    minhash = module("datatrove.pipeline.dedup.minhash")
    readers, writers = module("datatrove.pipeline.readers"), module("datatrove.pipeline.writers.jsonl")
    tokens = module("datatrove.pipeline.tokens").DocumentTokenizer(
        str(folder / "tokens"), str(folder / "tokenizer.json"), eos_token="<|endoftext|>", shuffle_documents=False
    )
    config = minhash.MinhashConfig()
    signatures, buckets, duplicates = (str(folder / name) for name in ("signatures", "buckets", "duplicates"))
    quality = filters.GopherQualityFilter(
        min_doc_words=None, max_doc_words=None, min_avg_word_length=None, max_avg_word_length=None,
        max_symbol_word_ratio=None, max_bullet_lines_ratio=None, max_ellipsis_lines_ratio=None,
        max_non_alpha_words_ratio=0.5, min_stop_words=None, language=words,
    )  # fmt: skip
    repetition = filters.GopherRepetitionFilter(
        dup_line_frac=None, dup_line_char_frac=None, top_n_grams=(), language=words
    )
    page = filters.C4QualityFilter(
        remove_citations=False, filter_no_terminal_punct=False, min_num_sentences=-1, min_words_per_line=-1,
        max_word_length=-1, filter_javascript=False, filter_curly_bracket=False, filter_policy=False,
    )  # fmt: skip
    steps: list[tuple[int, list[Any]]] = [
        (TASKS, [read("rows"), quality, repetition, page, write("kept")]),
        (TASKS, [read("kept"), dedup.MinhashDedupSignature(signatures, config, words)]),
        (config.num_buckets, [dedup.MinhashDedupBuckets(signatures, buckets, config=config)]),
        (1, [dedup.MinhashDedupCluster(buckets, duplicates, config=config)]),
        (TASKS, [read("kept"), dedup.MinhashDedupFilter(duplicates), write("deduplicated")]),
        (TASKS, [read("deduplicated"), tokens]),
    ]
    executor = module("datatrove.executor").LocalPipelineExecutor
    for number, (tasks, pipeline) in enumerate(steps):
        executor(pipeline, tasks=tasks, workers=1, logging_dir=str(folder / "logs" / str(number))).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
