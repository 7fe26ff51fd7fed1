"""The model: any causal language model that transformers can build from a config, from scratch or from a trained one.

And the way back: from weights as they are trained to a model that `from_pretrained` loads.

A trained one is a local folder, or a commit of a Hub repository, named in full (`owner/name@COMMIT`): a branch can
move, so only a commit says which weights were continued. Weights are read from safetensors alone, and no code of the
model's is run.
"""

import errno
import hashlib
import math
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from stages.formats.model_folder import TOKENIZER_JSON
from stages.formats.tokens import Manifest
from stages.runtime.atomic import file_sha256
from stages.runtime.errors import UserError
from stages.runtime.hub import HUB_COMMIT, model_folder, require_weights
from stages.train.compute.model.attention import (
    check_causal,
    check_documents_kept_apart,
    describe_error,
    head_size,
    leave_out_mask,
)
from stages.train.compute.model.loss import CausalLoss, check_router_fields
from stages.train.compute.params import ComputingParams

IDENTIFYING_FILES = ["config.json", "*.safetensors", "*.safetensors.index.json"]
READ_FILES = [*IDENTIFYING_FILES, TOKENIZER_JSON]


def source_folder(start_from: str, download: bool = False) -> Path:
    """The folder with the model's files; a Hub commit is downloaded first, or must have been.

    Raises UserError if there is no such model or access is refused, UnavailableError if the Hub does not answer.
    """
    what = f"params.yaml: train.start_from = {start_from!r}"
    return model_folder(what, start_from, READ_FILES, download=download)[0]


def source_sha256(start_from: str) -> str:
    """Identifies the model's content: a Hub commit, or the sha256 of the folder's weights and config.json."""
    if commit := HUB_COMMIT.fullmatch(start_from):
        return commit["commit"]
    folder = source_folder(start_from)
    files = sorted(file for pattern in IDENTIFYING_FILES for file in folder.glob(pattern))
    lines = [f"{file.name} {file_sha256(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def from_source(start_from: str, kind: Any, **options: Any) -> Any:
    """Its config or its model, as the class `kind` of transformers loads it. Raises UserError if it cannot."""
    folder = source_folder(start_from)
    try:
        return kind.from_pretrained(folder, trust_remote_code=False, **options)
    except Exception as error:  # Each architecture and each damaged file fails in a way of its own.
        raise UserError(
            f"params.yaml: train.start_from = {start_from!r}: cannot be loaded: {describe_error(error)}"
        ) from None


VOCABULARY_MULTIPLE = 64
"""The embedding's rows are padded to this in training (matrix units like it) and cut off at export."""


def build_config(params: ComputingParams, vocabulary: Manifest) -> PreTrainedConfig:
    """`train.model` as a config, or the config of `start_from` with these fields. Raises UserError on unknown ones."""
    fields = dict(params.model)
    if params.start_model is not None:
        return _source_config(params.start_model, fields)
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
        config = AutoConfig.for_model(model_type, **fields)
    except UserError:
        raise
    except Exception as error:  # Each architecture refuses in a way of its own.
        raise UserError(f"params.yaml: train.model: {describe_error(error)}") from None
    config.vocab_size = vocabulary.vocab_size
    config.bos_token_id = config.eos_token_id = vocabulary.eos_id
    if "pad_token_id" not in fields and getattr(config, "pad_token_id", None) is not None:
        config.pad_token_id = vocabulary.eos_id  # the default is an id of another vocabulary
    config.use_cache = True
    if (positions := _positions(config)) < params.sequence_length:
        raise UserError(
            f"params.yaml: train.sequence_length = {params.sequence_length}: the model has {positions} positions; "
            "lower it, or raise the model's n_positions / max_position_embeddings"
        )
    return config


def _source_config(start_from: str, fields: dict[str, Any]) -> PreTrainedConfig:
    config: PreTrainedConfig = from_source(start_from, AutoConfig)
    for name, value in fields.items():
        if not hasattr(config, name) or (name == "model_type" and value != config.model_type):
            raise UserError(
                f"params.yaml: train.model.{name}: train.start_from = {start_from!r} is a `{config.model_type}`; set "
                "train.model to {}, or to the fields of its config.json to change"
            )
        setattr(config, name, value)
    return config


def without_values(config: PreTrainedConfig, device: str = "meta") -> PreTrainedModel:
    """The model that the config describes, in fp32; it takes no memory on `meta` or with fake tensors.

    Raises UserError if transformers cannot build it.
    """
    try:
        with torch.device(device):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
    except Exception as error:  # Each architecture refuses in a way of its own.
        raise UserError(
            f"params.yaml: train.model: cannot build `{config.model_type}` with these fields: {describe_error(error)}"
        ) from None
    return model


def model_without_weights(params: ComputingParams, vocabulary: Manifest) -> PreTrainedModel:
    """The model that training builds, of any size. Raises UserError as training would."""
    config = build_config(params, vocabulary)
    if params.start_model is not None:
        _load(params.start_model, config, "meta")  # reads the headers of the weights' files
        use_ids_of(vocabulary, config)
    config.vocab_size = padded_vocabulary(vocabulary.vocab_size)
    return without_values(config)


def _positions(config: PreTrainedConfig) -> float:
    """How long a sequence can be; some architectures set no limit, which XLNet writes as -1."""
    positions = getattr(config, "max_position_embeddings", None) or math.inf
    return positions if positions > 0 else math.inf


def build_model(params: ComputingParams, vocabulary: Manifest) -> PreTrainedModel:
    """A model in fp32, from random weights that depend on `params.seed` alone or from `params.start_model`."""
    config = build_config(params, vocabulary)
    torch.manual_seed(params.seed)
    if params.start_model is None:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    else:
        model = _continued(params.start_model, config, params.sequence_length, vocabulary)
    _resize(model, padded_vocabulary(vocabulary.vocab_size))
    made_trainable(model, params)
    if params.attention == "document":
        check_documents_kept_apart(model)
    else:
        leave_out_mask(model, params.sequence_length)
    check_causal(model, params.sequence_length)
    return model


def made_trainable(model: PreTrainedModel, params: ComputingParams) -> PreTrainedModel:
    """The model, set to be trained."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # rows are full of text: an id that pads elsewhere is trained as any other
    model.config.use_cache = False
    # Loaded models come in evaluation mode, without dropout.
    model.train()
    if params.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def _resize(model: PreTrainedModel, rows: int) -> None:
    """Give the embedding and the output head `rows` rows. Raises UserError if transformers cannot (xlstm)."""
    try:
        model.resize_token_embeddings(rows, mean_resizing=False)
    except AttributeError as error:
        raise UserError(
            f"params.yaml: train.model: the vocabulary of `{model.config.model_type}` cannot be resized in "
            f"transformers: {describe_error(error)}"
        ) from None


def _load(start_from: str, config: PreTrainedConfig, device: str | None = None) -> PreTrainedModel:
    options = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True, "device_map": device}
    model, info = from_source(start_from, AutoModelForCausalLM, config=config, **options)
    require_weights(f"params.yaml: train.start_from = {start_from!r}", info)
    return cast(PreTrainedModel, model)


def _continued(
    start_from: str, config: PreTrainedConfig, sequence_length: int, vocabulary: Manifest
) -> PreTrainedModel:
    model = _load(start_from, config)
    if model.config.vocab_size < vocabulary.vocab_size:
        raise UserError(
            f"params.yaml: train.start_from = {start_from!r}: its vocabulary has {model.config.vocab_size} entries, "
            f"the tokens have {vocabulary.vocab_size}; use its tokenizer (tokenizer.kind: existing)"
        )
    if (positions := _positions(model.config)) < sequence_length:
        raise UserError(
            f"params.yaml: train.start_from = {start_from!r}: it has {positions} positions, "
            f"train.sequence_length = {sequence_length}; lower it to {positions} or less"
        )
    # Many models were padded when they were trained (Pythia, Qwen): rows that no id of the tokenizer reads go first.
    _resize(model, vocabulary.vocab_size)
    model.generation_config = GenerationConfig()  # its own may name ids of its own vocabulary
    use_ids_of(vocabulary, model.config)
    use_ids_of(vocabulary, model.generation_config)
    return model


def use_ids_of(vocabulary: Manifest, config: PreTrainedConfig | GenerationConfig) -> None:
    """Let a model that is continued begin and end texts as the tokens do, as one from scratch does.

    Its own ids are of its own tokenizer: of another one they may name an ordinary token, or none.
    """
    config.bos_token_id = config.eos_token_id = vocabulary.eos_id
    if getattr(config, "pad_token_id", None) is not None:  # some architectures name none
        config.pad_token_id = vocabulary.eos_id


def padded_vocabulary(size: int) -> int:
    """The vocabulary's size in training."""
    return -(-size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


WITHOUT_ATTENTION = ("conv", "linear_attention", "moe")
"""Layers that read no earlier token one by one, as configs name them (`layer_types`): convolutions (LFM2), recurrent
ones (Mamba, gated delta nets), and experts alone (Nemotron-H)."""


def flops_per_token(model: PreTrainedModel, sequence_length: int) -> int:
    """The model's floating-point operations per trained token, forward and backward: 6 N + 12 L H Q T.

    Chowdhery et al. 2022, "PaLM", appendix B; 6 N is that of Kaplan et al. 2020, section 2.1. N counts the parameters
    that are multiplied with: an embedding that is only looked up is left out, one that is the output matrix too is
    counted once. L H Q T is layers * query heads * size of a head * sequence length, for the products of attention,
    where key and value heads that several query heads share save nothing. A layer `WITHOUT_ATTENTION` has none. The
    products are counted whole: neither the causal half nor the limits of documents and windows are taken off. What is
    computed again to save memory does not count. Of a mixture of experts all experts count.
    """
    config, output = model.config.get_text_config(), model.get_output_embeddings()
    multiplied = {id(parameter): parameter.numel() for parameter in model.parameters()}
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.weight is not getattr(output, "weight", None):
            multiplied.pop(id(module.weight), None)
    heads = getattr(config, "num_attention_heads", None) or 0
    kinds = getattr(config, "layer_types", None) or [None] * int(config.num_hidden_layers)
    attention = 12 * sum(kind not in WITHOUT_ATTENTION for kind in kinds) * heads * head_size(config) * sequence_length
    return int(6 * sum(multiplied.values()) + attention)


def plain_model(trained: CausalLoss, weights: dict[str, Tensor], vocabulary: Manifest) -> PreTrainedModel:
    """A model like the trained one with `weights`, on the CPU, without the padding of the vocabulary.

    It can be saved, and does not compute: it is made without weights, takes these, and has none of the tables that
    models do not save.
    """
    with torch.device("meta"):
        plain: PreTrainedModel = type(trained.model)(deepcopy(trained.model.config))
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    plain.resize_token_embeddings(vocabulary.vocab_size)
    plain.generation_config = trained.model.generation_config
    plain.generation_config.pad_token_id = vocabulary.eos_id  # as `write_tokenizer` pads
    plain.config.use_cache = True
    return plain


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write a model into an existing folder; its files have the modes that the umask gives.

    Raises OSError on a full disk, UserError if transformers refuses to save the model.
    """
    try:
        model.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # Each architecture refuses in a way of its own.
        if isinstance(error, SafetensorError) and "No space left" in str(error):
            raise OSError(errno.ENOSPC, str(error), str(folder)) from error
        raise UserError(
            f"train: transformers cannot save the trained model: {describe_error(error)}; the checkpoints are kept, so "
            "the same command continues at this step once the cause is removed"
        ) from None
    mode = (folder / "config.json").stat().st_mode
    for weights in folder.glob("*.safetensors"):
        weights.chmod(mode)  # safetensors makes them readable by their owner alone
