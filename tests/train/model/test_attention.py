"""What a token may look at: its row, or its document."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from stages.formats.tokens import Manifest, TokenStore
from stages.runtime.entry import UserError
from stages.train.data.batches import Rows, read_rows
from stages.train.data.packing import pack
from stages.train.model.attention import UNMASKED, WINDOWED, mask_documents_where_needed
from stages.train.model.build import build_model
from stages.train.model.document_attention import DOCUMENTS, as_mask, document_attention
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams
from tests.train.small_run import largest_difference, params, run_workers, write_project


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The names of the operations that run while it is active, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operation and note its name."""
        self.names.append(func._schema.name.partition("::")[2])
        return func(*args, **(kwargs or {}))


VOCABULARY = Manifest("uint16", 300, 0, "", "", ())

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32} | {
    f"{name}_pdrop": 0.0 for name in ("resid", "embd", "attn")
}
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2} | {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 4}
MAMBA = {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}


def loss_of(model: dict[str, Any], attention: str, precision: str = "fp32") -> CausalLoss:
    values = TrainParams.model_validate(params(model=model, attention=attention, precision=precision))
    return CausalLoss(build_model(values, VOCABULARY), values).eval()


def tensors(batch: Rows) -> list[torch.Tensor]:
    return [torch.from_numpy(part) for part in (batch.inputs, batch.targets, batch.positions, batch.boundaries)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return TokenStore(write_project(tmp_path_factory.mktemp("project")) / "data/tokens/train")


@settings(max_examples=20, deadline=None)
@given(sequence_length=st.integers(2, 300))
def test_positions_begin_at_0_with_each_row_and_document_and_else_go_on(
    store: TokenStore, sequence_length: int
) -> None:
    index = pack(store, sequence_length)
    if not index.rows:
        return
    batch = read_rows(store, index, np.arange(min(index.rows, 40)), sequence_length)
    first_tokens = set(store.document_starts.tolist())
    for row, positions in enumerate(batch.positions):
        column = 0
        for start, length in index.segments(row):
            expected = 0
            for place in range(start, start + length):
                expected = 0 if place == start or place in first_tokens else expected + 1
                assert positions[column] == expected
                column += 1


@pytest.mark.parametrize("model", [GPT2, LLAMA, MISTRAL])
def test_a_packed_row_gives_the_losses_of_its_documents_alone(model: dict[str, Any], store: TokenStore) -> None:
    loss = loss_of(model, "document")
    index = pack(store, 32)
    all_rows = read_rows(store, index, np.arange(index.rows), 32)
    row = int((all_rows.positions == 0).sum(axis=1).argmax())
    inputs, targets, positions, boundaries = tensors(read_rows(store, index, np.array([row]), 32))
    starts = boundaries.tolist()
    assert starts == [*torch.nonzero(positions[0] == 0).flatten().tolist(), 32]
    assert len(starts) > 2

    together = loss(inputs, targets, positions, boundaries)[0]

    alone = [loss(inputs[:, a:b], targets[:, a:b], positions[:, a:b])[0] for a, b in pairwise(starts)]
    assert together.item() == pytest.approx(sum(part.item() for part in alone), rel=1e-5)
    assert together.item() != pytest.approx(loss_of(model, "causal")(inputs, targets)[0].item(), rel=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", [GPT2, LLAMA, MISTRAL])
def test_without_a_mask_documents_give_the_gradients_that_they_give_with_it(
    model: dict[str, Any], precision: str, store: TokenStore
) -> None:
    loss = loss_of(model, "document", precision)
    batch = tensors(read_rows(store, pack(store, 32), np.arange(4), 32))
    assert loss.model.config._attn_implementation == DOCUMENTS
    ours = gradients(loss, batch)

    loss.model.set_attn_implementation("sdpa")  # transformers' own, with a mask

    for name, expected in gradients(loss, batch).items():
        exact = {"rtol": 1e-4, "atol": 1e-4} if precision == "fp32" else {"rtol": 0.1, "atol": 0.1}
        torch.testing.assert_close(ours[name], expected, **exact, msg=name)


def gradients(loss: CausalLoss, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    loss.zero_grad()
    torch.autograd.backward(loss(*batch).sum())
    return {name: parameter.grad.clone() for name, parameter in loss.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize(
    "model",
    [
        GPT2 | {"attn_pdrop": 0.1},
        LLAMA | {"model_type": "doge", "keep_window_size": 4},
        LLAMA | {"model_type": "gemma2", "head_dim": 8, "attn_logit_softcapping": 30.0},
    ],
    ids=["dropout", "doge", "gemma2"],
)
def test_a_model_that_cannot_do_without_keeps_the_mask_between_documents(model: dict[str, Any]) -> None:
    assert loss_of(model, "document").model.config._attn_implementation != DOCUMENTS


def test_compiled_code_serves_batches_of_any_number_of_documents() -> None:
    loss = loss_of(LLAMA, "document")
    graphs: list[torch.fx.GraphModule] = []

    def noted(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(loss, dynamic=False, backend=noted, fullgraph=True)
    ids = torch.arange(64).reshape(2, 32)
    for lengths in ([32, 32], [5, 27, 32], [1] * 64):
        boundaries = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
        positions = torch.cat([torch.arange(length) for length in lengths]).reshape(2, 32)
        torch._dynamo.maybe_mark_dynamic(boundaries, 0)
        torch.testing.assert_close(compiled(ids, ids, positions, boundaries), loss(ids, ids, positions, boundaries))
    assert len(graphs) == 1


def test_a_gpu_attends_within_documents_by_torchs_flash_attention() -> None:
    """By shapes alone: on the meta device, whose operations are those of a GPU without values."""
    query = torch.empty(2, 4, 32, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
    key, value = (torch.empty(2, 2, 32, 16, dtype=torch.bfloat16, device="meta", requires_grad=True) for _ in "kv")
    boundaries = torch.empty(7, dtype=torch.int32, device="meta")

    with Operations() as operations:
        output, _ = document_attention(torch.nn.Module(), query, key, value, as_mask(boundaries), sliding_window=8)
        torch.autograd.backward(output.sum())

    assert output.shape == (2, 32, 4, 16)
    assert key.grad is not None
    assert key.grad.shape == key.shape
    assert {"_varlen_attn", "_varlen_attn_backward"} <= set(operations.names)


@pytest.mark.parametrize(
    ("capability", "dtype", "size", "expected"),
    [
        ((9, 0), torch.bfloat16, 128, True),
        ((7, 5), torch.bfloat16, 128, False),
        ((9, 0), torch.float32, 128, False),
        ((9, 0), torch.bfloat16, 288, False),
        ((9, 0), torch.bfloat16, 20, False),
    ],
)
def test_a_gpu_needs_bf16_and_what_flash_attention_takes(
    capability: tuple[int, int], dtype: torch.dtype, size: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    model = loss_of(LLAMA | {"head_dim": size}, "document").model

    mask_documents_where_needed(model, dtype, torch.device("cuda"))

    assert model.config._attn_implementation == (DOCUMENTS if expected else "sdpa")


@pytest.mark.parametrize("model", [GPT2, LLAMA, MISTRAL])
def test_attention_without_a_mask_is_transformers_own_causal_attention(model: dict[str, Any]) -> None:
    ours = loss_of(model, "causal").model
    ids = torch.arange(24).reshape(2, 12)
    assert ours.config._attn_implementation == (WINDOWED if model is MISTRAL else UNMASKED)
    logits = ours(input_ids=ids).logits
    ours.set_attn_implementation("eager")

    torch.testing.assert_close(logits, ours(input_ids=ids).logits, rtol=1e-4, atol=1e-5)


def test_a_model_that_adds_something_of_its_own_to_the_mask_keeps_it() -> None:
    """doge masks keys by their values; without its mask it would not even be causal."""
    doge = LLAMA | {"model_type": "doge", "keep_window_size": 4}
    ours = loss_of(doge, "causal").model
    assert ours.config._attn_implementation == "sdpa"


def test_a_model_that_cannot_keep_documents_apart_is_refused() -> None:
    with pytest.raises(UserError, match=r"train.attention = document: `mamba` cannot keep .* apart"):
        loss_of(MAMBA, "document")


def test_training_within_documents_is_the_same_on_two_processes_and_loads_as_any_model(tmp_path: Path) -> None:
    one = write_project(tmp_path / "one", attention="document", deterministic_micro_batch_size=2, max_steps=4)
    two = write_project(tmp_path / "two", attention="document", deterministic_micro_batch_size=2, max_steps=4)
    run_workers(one, 1)
    run_workers(two, 2)

    assert largest_difference(one, two) == 0
    assert "attn_implementation" not in (one / "model/config.json").read_text()
