"""A project in which everything up to training is there: real tokenizer and token stores, a tiny random model."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from stages.formats.documents import Document, write_shard
from stages.formats.reports import write_json
from stages.tokenize.__main__ import main as tokenize
from stages.tokenizer.__main__ import main as train_tokenizer
from tests.small_project import document, function_text, sections, write_project

CONTEXT_LENGTH = 32

EVALUATE: dict[str, Any] = {
    "context_length": None,
    "stride": None,
    "bootstrap_resamples": 200,
    "seed": 0,
    "samples": {"count": 3, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 12, "header_bytes": 60},
}

PUBLISH: dict[str, Any] = {
    "name": "tiny",
    "folder": "published",
    "repository": None,
    "private": True,
    "license": "apache-2.0",
    "language": ["code"],
    "tags": ["tiny"],
    "description": "A model for tests.",
}


def write_trained_project(folder: Path) -> None:
    """Parameters, documents, tokenizer, token stores, the reports so far, and a model that has learnt nothing."""
    write_project(folder)
    write_sections(folder)
    texts = [function_text(number) for number in range(12)]
    write_side(folder / "data/clean/train", texts[:8])
    write_side(folder / "data/clean/validation", texts[8:])
    with contextlib.chdir(folder):
        train_tokenizer()
        tokenize()
    write_model(folder)
    write_json(folder / "reports/clean.json", {"documents": 13, "dropped": {"generated": {"bytes": 9, "documents": 1}}})
    write_json(folder / "reports/train.json", {"parameters": 12345, "steps": 3, "tokens": 99, "training_loss": 5.5})


def write_sections(folder: Path, **changes: Any) -> None:
    """params.yaml with some values of `evaluate` and `publish` changed: `publish__name="x"`."""
    values = sections() | {"evaluate": dict(EVALUATE), "publish": dict(PUBLISH)}
    for dotted, value in changes.items():
        section, name = dotted.split("__")
        values[section][name] = value
    (folder / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")


def write_side(folder: Path, texts: list[str]) -> None:
    """Two shards of documents, as the cleaning stage leaves them."""
    folder.mkdir(parents=True)
    documents = sorted((document(text, source=f"s{len(text) % 2}") for text in texts), key=lambda item: item.sort_key)
    halves: dict[str, list[Document]] = {"b0": [], "b1": []}
    for item in documents:
        halves["b0" if item.id[0] < "8" else "b1"].append(item)
    for name, half in halves.items():
        write_shard(folder / f"{name}.parquet", half)


def write_model(folder: Path, seed: int = 0) -> None:
    """A GPT-2 of a few thousand random weights, with the project's tokenizer."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=300, n_positions=CONTEXT_LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    shutil.rmtree(folder / "model", ignore_errors=True)
    GPT2LMHeadModel(config).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(folder / "data/tokenizer").save_pretrained(folder / "model")
