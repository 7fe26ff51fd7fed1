"""What publishing reads: the trained model, its measures and what it was trained on."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stages.formats.reports import read_json
from stages.formats.tokens import TokenStore
from stages.runtime.entry import UserError

MODEL = Path("model")
SAMPLES = Path("data/samples.json")
TRAIN_TOKENS = Path("data/tokens/train")
VALIDATION_TOKENS = Path("data/tokens/validation")
CLEAN_REPORT = Path("reports/clean.json")
TRAIN_REPORT = Path("reports/train.json")
EVALUATE_REPORT = Path("reports/evaluate.json")
ACCEPTED = Path("accepted.yaml")

ALL = (MODEL, SAMPLES, TRAIN_TOKENS, VALIDATION_TOKENS, CLEAN_REPORT, TRAIN_REPORT, EVALUATE_REPORT)


@dataclass
class Amount:
    """So much text."""

    documents: int = 0
    bytes: int = 0


@dataclass
class Side:
    """What one side of the split holds."""

    total: Amount
    tokens: int
    sources: dict[tuple[str, str], Amount] = field(default_factory=lambda: defaultdict(Amount))
    """(source, revision) -> how much."""
    licenses: dict[str, Amount] = field(default_factory=lambda: defaultdict(Amount))
    """SPDX expression, or empty where none is known -> how much."""


@dataclass(frozen=True)
class Inputs:
    """Everything that a card tells of."""

    config: dict[str, Any]
    samples: list[dict[str, Any]]
    train: Side
    validation: Side
    clean: dict[str, Any]
    training: dict[str, Any]
    evaluation: dict[str, Any]
    accepted: list[dict[str, Any]]
    """Stages that someone declared up to date without a run, and why (`parrotflow accept`)."""


def read_inputs() -> Inputs:
    """Read all of it. Raises UserError that names what is missing."""
    for place in ALL:
        if not place.exists():
            raise UserError(f"{place}: not found; run `dvc repro`, which makes it first")
    return Inputs(
        config=read_json(MODEL / "config.json"),
        samples=read_json(SAMPLES),
        train=read_side(TRAIN_TOKENS),
        validation=read_side(VALIDATION_TOKENS),
        clean=read_json(CLEAN_REPORT),
        training=read_json(TRAIN_REPORT),
        evaluation=read_json(EVALUATE_REPORT),
        accepted=(yaml.safe_load(ACCEPTED.read_text(encoding="utf-8")) or []) if ACCEPTED.exists() else [],
    )


def read_side(folder: Path) -> Side:
    """Count a token store's documents by source and by licence."""
    store = TokenStore(folder)
    side = Side(Amount(store.manifest.documents, store.manifest.bytes), store.manifest.tokens)
    for info in store.document_infos():
        for amount in (side.sources[info["source"], info["revision"]], side.licenses[info["license"]]):
            amount.documents += 1
            amount.bytes += info["bytes"]
    return side
