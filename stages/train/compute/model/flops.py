"""The floating-point operations of a model, by which it is decided whether a run compiles."""

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

WITHOUT_ATTENTION = ("conv", "linear_attention", "moe")
"""Layers that read no earlier token one by one, as configs name them (`layer_types`): convolutions (LFM2), recurrent
ones (Mamba, gated delta nets), and experts alone (Nemotron-H)."""


def flops_per_token(model: PreTrainedModel, sequence_length: int, head_rows: int | None = None) -> int:
    """The model's floating-point operations per trained token, forward and backward: 6 N + 12 L H Q T.

    Chowdhery et al. 2022, "PaLM", appendix B; 6 N is that of Kaplan et al. 2020, section 2.1. N counts the parameters
    that are multiplied with: an embedding that is only looked up is left out, one that is the output matrix too is
    counted once. L H Q T is layers * query heads * size of a head * sequence length, for the products of attention,
    where key and value heads that several query heads share save nothing. A layer `WITHOUT_ATTENTION` has none. The
    products are counted whole: neither the causal half nor the limits of documents and windows are taken off. What is
    computed again to save memory does not count. Of a mixture of experts all experts count. With `head_rows` the output
    matrix has these and one for each target of a sequence.
    """
    config, output = model.config.get_text_config(), model.get_output_embeddings()
    multiplied = {id(parameter): parameter.numel() for parameter in model.parameters()}
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.weight is not getattr(output, "weight", None):
            multiplied.pop(id(module.weight), None)
    heads = getattr(config, "num_attention_heads", None) or 0
    kinds = getattr(config, "layer_types", None) or [None] * int(config.num_hidden_layers)
    attention = 12 * sum(kind not in WITHOUT_ATTENTION for kind in kinds) * heads * head_size(config) * sequence_length
    unused = 0
    if head_rows is not None:
        vocabulary, width = output.weight.shape
        unused = max(0, vocabulary - head_rows - sequence_length) * width
    return int(6 * (sum(multiplied.values()) - unused) + attention)


def head_size(config: PreTrainedConfig) -> int:
    """The size of a query head; 0 for an architecture without attention, such as mamba, which names no heads."""
    heads = getattr(config, "num_attention_heads", None) or 0
    return int(getattr(config, "head_dim", None) or config.hidden_size // heads) if heads else 0
