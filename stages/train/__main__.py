"""Token store -> model: `python -m stages.train`.

Checks what can be checked without a model, then starts `accelerate launch` of `stages.train.worker`.
"""

from pathlib import Path

from stages.formats.entry import UserError, run_stage
from stages.formats.section import read_section
from stages.formats.tokens import TokenStore
from stages.formats.versions import require_locked
from stages.train.launch import launch
from stages.train.packing import build_packing
from stages.train.params import TrainParams

TOKENS = Path("data/tokens")


def main() -> None:
    params = read_section("train", TrainParams)
    require_locked("torch", "transformers", "accelerate", "numpy", "safetensors")
    for side in ("train", "validation"):
        check_store(TokenStore(TOKENS / side), params)
    launch()


def check_store(store: TokenStore, params: TrainParams) -> None:
    """Raise UserError where a side is damaged or has not one whole sequence."""
    store.verify()
    tokens = store.manifest.tokens
    if tokens < params.sequence_length or not build_packing(store, params.sequence_length, params.packing).rows:
        raise UserError(
            f"{store.folder}: {tokens} tokens are fewer than one sequence "
            f"(train.sequence_length = {params.sequence_length}); collect more documents or lower it"
        )


if __name__ == "__main__":
    run_stage(main)
