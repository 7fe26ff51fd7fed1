"""Counts the floating-point operations of a model; they decide whether a run compiles."""

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

WITHOUT_ATTENTION = ("conv", "linear_attention", "moe")
"""Values of `layer_types` in configs for layers without attention: convolutions (LFM2), recurrences (Mamba, gated delta
nets), and separate layers of experts (Nemotron-H)."""


def flops_per_token(model: PreTrainedModel, sequence_length: int, head_rows: int | None = None) -> int:
    """The model's floating-point operations per trained token, forward and backward: 6 N + 12 L H Q T.

    Chowdhery et al. 2022, "PaLM", appendix B; 6 N is from Kaplan et al. 2020, section 2.1. N counts the parameters used
    in matrix products: an embedding that is only looked up does not count, one tied to the output matrix counts once.
    L H Q T is layers * query heads * head size * sequence length, for the products of attention; shared key and value
    heads save nothing, and layers `WITHOUT_ATTENTION` have none. Masked pairs (causal, document, window) are counted;
    recomputed activations are not. In a mixture of experts all experts count. With `head_rows` the output matrix has
    that many rows and one for each target of a sequence.
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
    """The size of a query head; 0 for an architecture without attention, such as mamba."""
    heads = getattr(config, "num_attention_heads", None) or 0
    return int(getattr(config, "head_dim", None) or config.hidden_size // heads) if heads else 0
