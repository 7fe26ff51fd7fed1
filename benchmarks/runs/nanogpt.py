"""nanoGPT's model, from a checkout given by path, at the size of the `train` section."""

import importlib.util
from pathlib import Path
from typing import Any

from stages.train.params import TrainParams


def load_nanogpt(folder: Path, params: TrainParams, vocab_size: int) -> Any:
    """A model of nanoGPT's own code, in fp32, with random weights."""
    specification = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    if specification is None or specification.loader is None:
        raise SystemExit(f"--nanogpt {folder}: no model.py there")
    module: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    own = params.model
    sizes = {"n_layer": own["n_layer"], "n_head": own["n_head"], "n_embd": own["n_embd"], "dropout": 0.0}
    return module.GPT(module.GPTConfig(block_size=params.sequence_length, vocab_size=vocab_size, **sizes))
