"""Builds the model: any causal language model of transformers, with random or trained weights."""

import math

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from stages.formats.architecture import learned_positions
from stages.formats.tokens import Manifest
from stages.runtime.errors import UserError, describe_error
from stages.train.compute.model.attention import check_causal, omit_mask
from stages.train.compute.model.documents import check_documents_kept_apart
from stages.train.compute.model.routers import check_router_fields
from stages.train.compute.model.source import load_source, source_config
from stages.train.compute.params import ComputingParams

VOCABULARY_MULTIPLE = 64
"""The embedding's rows are padded to a multiple of this in training, for matrix units. The export removes them."""


def build_config(params: ComputingParams, vocabulary: Manifest) -> PreTrainedConfig:
    """`train.model` as a config, or the config of `start_from` with these fields changed.

    Raises UserError for unknown fields, or if `sequence_length` exceeds the model's positions.
    """
    start = params.start_model
    config = _new_config(params, vocabulary) if start is None else source_config(start, params.model)
    # Some architectures have no limit; XLNet writes it as -1.
    positions = getattr(config, "max_position_embeddings", None) or math.inf
    if 0 < positions < params.sequence_length:
        or_raise = "" if start else ", or raise the model's n_positions / max_position_embeddings"
        raise UserError(
            f"params.yaml: train.sequence_length = {params.sequence_length}: the model has {positions} positions; "
            f"lower it{or_raise}"
        )
    return config


def _new_config(params: ComputingParams, vocabulary: Manifest) -> PreTrainedConfig:
    fields = dict(params.model)
    model_type = fields.pop("model_type", None)
    if model_type not in CONFIG_MAPPING:
        raise UserError(
            f"params.yaml: train.model.model_type = {model_type!r}: no such architecture in transformers; "
            "e.g. gpt2, llama, qwen3, gpt_neox"
        )
    check_router_fields(fields)
    try:
        known = AutoConfig.for_model(model_type)
        if unknown := sorted(name for name in fields if not hasattr(known, name)):
            raise UserError(f"params.yaml: train.model.{unknown[0]}: no such field in the config of `{model_type}`")
        config: PreTrainedConfig = AutoConfig.for_model(model_type, **fields)
    except UserError:
        raise
    except Exception as error:  # architectures raise different exceptions
        raise UserError(f"params.yaml: train.model: {describe_error(error)}") from None
    positions = positions_field(config)
    if positions not in fields and (getattr(config, positions, None) or 0) > params.sequence_length:
        setattr(config, positions, params.sequence_length)  # the model learns no more positions
    config.vocab_size = vocabulary.vocab_size
    config.bos_token_id = config.eos_token_id = vocabulary.eos_id
    if "pad_token_id" not in fields and getattr(config, "pad_token_id", None) is not None:
        config.pad_token_id = vocabulary.eos_id  # the default is an id of another vocabulary
    config.use_cache = True
    return config


def positions_field(config: PreTrainedConfig) -> str:
    """The config field for an architecture's number of positions, such as n_positions."""
    return str(config.attribute_map.get("max_position_embeddings", "max_position_embeddings"))


def build_model(params: ComputingParams, vocabulary: Manifest) -> PreTrainedModel:
    """Build a model in fp32, with random weights that depend on `params.seed`, or those of `params.start_model`."""
    config = build_config(params, vocabulary)
    torch.manual_seed(params.seed)
    if params.start_model is None:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
        check_positions(model, params.sequence_length)
    else:
        model = load_source(params.start_model, config, vocabulary)
        # Many models have a padded vocabulary (Pythia, Qwen): first remove rows that no id reads.
        _resize(model, vocabulary.vocab_size)
    _resize(model, padded_vocabulary(vocabulary.vocab_size))
    set_trainable(model, params)
    if params.attention == "document":
        check_documents_kept_apart(model)
    else:
        omit_mask(model, params.sequence_length)
    check_causal(model, params.sequence_length)
    return model


def check_positions(model: PreTrainedModel, sequence_length: int) -> None:
    """Raise UserError if a new model has learned positions beyond the sequences, which would keep random values."""
    if (learned := learned_positions(model)) is not None and learned > sequence_length:
        field = positions_field(model.config)
        raise UserError(
            f"params.yaml: train.sequence_length = {sequence_length}: `{model.config.model_type}` learns {learned} "
            f"positions, and no sequence would reach the last {learned - sequence_length}; "
            f"set train.model.{field}={sequence_length}, or raise train.sequence_length"
        )


def set_trainable(model: PreTrainedModel, params: ComputingParams) -> None:
    """Set a model up for training, in place."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # rows have no padding, so this id is trained as any other
    model.config.use_cache = False
    # Loaded models are in evaluation mode, without dropout.
    model.train()
    if params.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _resize(model: PreTrainedModel, rows: int) -> None:
    """Give the embedding and the output head `rows` rows. Raises UserError if transformers cannot (xlstm)."""
    try:
        model.resize_token_embeddings(rows, mean_resizing=False)
    except AttributeError as error:
        raise UserError(
            f"params.yaml: train.model: the vocabulary of `{model.config.model_type}` cannot be resized in "
            f"transformers: {describe_error(error)}"
        ) from None


def padded_vocabulary(size: int) -> int:
    """The vocabulary's size in training."""
    return -(-size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
