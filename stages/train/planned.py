"""The model that a training would build, without its weights: for forecasts and the dial."""

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from stages.formats.tokens import Manifest
from stages.runtime.errors import UserError, describe_error
from stages.train.compute.model.build import build_config, check_positions, padded_vocabulary
from stages.train.compute.model.source import load_source
from stages.train.compute.params import ComputingParams


def model_without_weights(params: ComputingParams, vocabulary: Manifest) -> PreTrainedModel:
    """The model that training would build. Raises UserError as training would."""
    config = build_config(params, vocabulary)
    if params.start_model is not None:
        load_source(params.start_model, config, vocabulary, device="meta")
    config.vocab_size = padded_vocabulary(vocabulary.vocab_size)
    model = without_values(config)
    if params.start_model is None:
        check_positions(model, params.sequence_length)
    return model


def without_values(config: PreTrainedConfig, device: str = "meta") -> PreTrainedModel:
    """Build a model in fp32; on `meta` or with fake tensors it takes no memory.

    Raises UserError if transformers cannot build it.
    """
    try:
        with torch.device(device):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
    except Exception as error:  # architectures raise different exceptions
        raise UserError(
            f"params.yaml: train.model: cannot build `{config.model_type}` with these fields: {describe_error(error)}"
        ) from None
    return model
