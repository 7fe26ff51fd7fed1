"""From weights as they are trained to a model that `from_pretrained` loads."""

import errno
from pathlib import Path

from accelerate import Accelerator
from safetensors import SafetensorError
from transformers import PreTrainedModel

from stages.formats.tokens import Manifest
from stages.runtime.atomic import atomic_folder
from stages.train.distributed.parallel import full_weights
from stages.train.model.build import build_model
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams


def full_model(
    trained: CausalLoss, accelerator: Accelerator, params: TrainParams, vocabulary: Manifest
) -> PreTrainedModel | None:
    """The model on the CPU of the main process, without the padding of the vocabulary; None on the others.

    Every process calls this: a sharded model is put together.
    """
    weights = full_weights(trained)
    if not accelerator.is_main_process:
        return None
    plain = CausalLoss(build_model(params, vocabulary), params)
    plain.load_state_dict(weights)
    plain.model.resize_token_embeddings(vocabulary.vocab_size)
    plain.model.config.use_cache = True
    return plain.model


def export_step(
    trained: CausalLoss, accelerator: Accelerator, params: TrainParams, vocabulary: Manifest, place: Path
) -> None:
    """Write the model as it is at one of `export_steps`. Every process calls this."""
    model = full_model(trained, accelerator, params, vocabulary)
    if model is not None:
        with atomic_folder(place) as folder:
            save_model(model, folder)
    accelerator.wait_for_everyone()


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write a model into an existing folder; a full disk is an OSError here as anywhere."""
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:
        if "No space left" not in str(error):
            raise
        raise OSError(errno.ENOSPC, str(error), str(folder)) from error
