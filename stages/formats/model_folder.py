"""The model folder: what training writes, and what evaluation, publishing and sampling read; and the tokenizer's.

    model.safetensors        the weights (large models: model-00001-of-0000N.safetensors and an index)
    config.json              the architecture
    generation_config.json   how to generate by default
    tokenizer.json, tokenizer_config.json    they begin each text with the end-of-sequence id, as training did
    training.json            what the order of the data followed from, and the precision (resolved, never `auto`)
    step-00000100/           the same without the tokenizer, for each of train.export_steps

`transformers.AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load it. The tokenizer also has
a folder of its own, `data/tokenizer`, as transformers saves it.
"""

import hashlib
from pathlib import Path

from stages.runtime.atomic import known_sha256, require_here
from stages.runtime.errors import UserError

MODEL = Path("model")
WEIGHTS = "model*.safetensors"
CONFIG = "config.json"
TRAINING_RUN = "training.json"

TOKENIZER = Path("data/tokenizer")
TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = (TOKENIZER_JSON, TOKENIZER_CONFIG)

MODEL_REMEDY = "; `parrotflow run train` trains one; if it was stopped, `dvc checkout model` restores the previous one"
"""DVC removes a stage's outputs before it runs."""


def weight_files(folder: Path = MODEL) -> list[Path]:
    """The weight files, in order. Raises UserError if the folder holds no model, or pointers to it."""
    files = sorted(folder.glob(WEIGHTS))
    require_here(*files)
    if not files and (pickles := sorted(path.name for path in folder.glob("*.bin"))):
        raise UserError(
            f"{folder}: the weights are pickled ({', '.join(pickles)}), and unpickling runs code of the file's author: "
            "convert them to safetensors"
        )
    if not files or not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder}: holds no model (model.safetensors and {CONFIG}){MODEL_REMEDY if folder == MODEL else ''}"
        )
    return files


def weights_sha256(folder: Path = MODEL) -> str:
    """The sha256 of the weights, in hex: of the one file's bytes, or of the concatenated sha256 of the shards."""
    hashes = [known_sha256(file) for file in weight_files(folder)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def exported_models() -> dict[int, Path]:
    """The models of `train.export_steps` in the model folder, by step."""
    return {int(path.name.removeprefix("step-")): path for path in sorted(MODEL.glob("step-*"))}


CHECKPOINTS = Path(".parrotflow/checkpoints")
"""A folder for each run, named by its fingerprint."""
