"""Short rows are attended to by plain products: the same attention as torch's, where it is faster."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.nn import functional

from stages.train.loss import CausalLoss
from stages.train.model import build_model
from stages.train.params import TrainParams
from stages.train.short_attention import SHORT, causal_attention
from tests.train.small_run import params
from tests.train.test_attention import GPT2, LLAMA, VOCABULARY


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 2), heads=st.integers(1, 3), tokens=st.integers(1, 300), width=st.sampled_from([4, 16]))
def test_the_products_are_torchs_causal_attention_and_have_its_gradients(
    rows: int, heads: int, tokens: int, width: int
) -> None:
    torch.manual_seed(tokens)
    leaves = [torch.randn(rows, heads, tokens, width, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(rows, heads, tokens, width)

    ours = causal_attention(*leaves, scaling=0.3)
    theirs = functional.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.3)

    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(ours, leaves, upstream), torch.autograd.grad(theirs, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def compiled_loss(model: dict[str, Any], tokens: int, **changes: Any) -> tuple[Tensor, Tensor, int]:
    """The loss compiled and not, and how often the compiled one calls torch's attention kernel."""
    torch.compiler.reset()
    longer = {"n_positions": 300} if model["model_type"] == "gpt2" else {"max_position_embeddings": 300}
    values = TrainParams.model_validate(params(model=model | longer, **({"precision": "bf16"} | changes)))
    loss_of = CausalLoss(build_model(values, VOCABULARY), values)
    kernels = 0

    def count_kernels(graph: fx.GraphModule, _: list[Tensor]) -> Any:
        nonlocal kernels
        kernels += sum("scaled_dot_product_attention" in str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.manual_seed(0)
    ids, positions = torch.randint(0, 300, (2, tokens)), torch.arange(tokens).expand(2, -1)
    compiled = torch.compile(loss_of, backend=count_kernels)(ids, ids, positions)
    return compiled, loss_of(ids, ids, positions), kernels


@pytest.mark.parametrize("model", [GPT2, LLAMA])
@pytest.mark.parametrize("tokens", [12, 200, SHORT])
def test_a_compiled_model_attends_so_to_short_rows_in_bf16(model: dict[str, Any], tokens: int) -> None:
    compiled, plain, kernels = compiled_loss(model, tokens)

    assert kernels == 0
    assert compiled.item() == pytest.approx(plain.item(), rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "changes"),
    [(SHORT + 1, {}), (12, {"precision": "fp32"}), (12, {"attention": "document"})],
    ids=["a longer row", "fp32", "within documents"],
)
def test_everything_else_is_left_to_torchs_kernel(tokens: int, changes: dict[str, Any]) -> None:
    assert compiled_loss(LLAMA, tokens, **changes)[2] == LLAMA["num_hidden_layers"]


def test_dropout_is_left_to_torchs_kernel() -> None:
    assert compiled_loss(GPT2 | {"attn_pdrop": 0.1}, 12)[2] == GPT2["n_layer"]
