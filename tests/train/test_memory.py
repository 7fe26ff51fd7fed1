"""The forecast of a step's memory, next to what torch's allocator gave out in that step."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

from stages.formats import plain_head
from stages.train.memory import Memory, MemoryTracker, Process, has_plain_head, memory_of_step
from stages.train.model.build import build_config, build_model, padded_vocabulary
from stages.train.model.loss import CausalLoss
from stages.train.optim.optimizers import build_optimizers
from stages.train.params import TrainParams
from tests.train.models import ROUTED, vocabulary
from tests.train.small_run import params

TOKENS, ROWS, VOCABULARY = 64, 8, 1024

WIDTH: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = WIDTH | {"num_key_value_heads": 2, "max_position_embeddings": TOKENS, "tie_word_embeddings": True}

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": TOKENS}
    | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {"model_type": "llama"} | GROUPED | {"tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", "head_dim": 32} | GROUPED,
    "qwen3_moe": {"model_type": "qwen3_moe", "moe_intermediate_size": 64, "num_experts": 8} | GROUPED | ROUTED,
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "head_dim": 32} | GROUPED | ROUTED,
    "gemma3_text": {"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 32} | GROUPED,
    "gemma2": {"model_type": "gemma2", "head_dim": 32, "sliding_window": 32} | GROUPED,
    "olmo2": {"model_type": "olmo2"} | GROUPED,
    "smollm3": {"model_type": "smollm3"} | GROUPED,
}

MAMBA2 = {"model_type": "mamba2", "hidden_size": 64, "num_heads": 4, "head_dim": 32, "num_hidden_layers": 1}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train_params(of: str, **changes: Any) -> TrainParams:
    given = {"model": MODELS[of], "sequence_length": TOKENS, "precision": "fp32"} | changes
    return TrainParams.model_validate(params(**given))


def forecast(values: TrainParams, micro_batches: int = 1, shards: int = 1, has_buckets: bool = False) -> Memory:
    config = build_config(values, vocabulary(VOCABULARY))
    config.vocab_size = padded_vocabulary(VOCABULARY)
    return memory_of_step(values, config, Process("cpu", ROWS, micro_batches, shards, has_buckets))


def held(tensors: list[Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in {id(tensor): tensor for tensor in tensors}.values())


def measured_peak(values: TrainParams, micro_batches: int = 1) -> int:
    """The most bytes in the second step of a real run: of its state, and what torch's allocator gave out besides."""
    model = build_model(values, vocabulary(VOCABULARY))
    loss = CausalLoss(model, values)
    optimizers = build_optimizers(model, values.optimizer, values.precision)
    ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS))
    positions = torch.arange(TOKENS).expand(ROWS, -1)

    def step() -> None:
        for _ in range(micro_batches):
            torch.autograd.backward(loss(ids, ids, positions).sum())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(1.0)

    step()
    state = [value for optimizer in optimizers for of in optimizer.state.values() for value in of.values()]
    before = held([*model.parameters(), *model.buffers(), *(value for value in state if isinstance(value, Tensor))])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = profiled.profiler.kineto_results.events()
    now = peak = before
    for _, size in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        now += size
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("model", MODELS)
def test_the_forecast_is_within_a_tenth_of_what_a_step_takes(model: str) -> None:
    values = train_params(model)

    assert forecast(values).total == pytest.approx(measured_peak(values), rel=0.1)


@pytest.mark.parametrize(
    ("changes", "micro_batches"),
    [
        ({"precision": "bf16"}, 1),
        ({"gradient_checkpointing": True}, 1),
        ({"attention": "document", "optimizer__name": "adamw"}, 1),
        ({}, 3),
    ],
)
def test_so_it_is_in_bf16_with_recomputed_activations_documents_kept_apart_and_accumulated_gradients(
    changes: dict[str, Any], micro_batches: int
) -> None:
    values = train_params("qwen3", **changes)

    found = forecast(values, micro_batches)

    assert found.total == pytest.approx(measured_peak(values, micro_batches), rel=0.1)


def test_documents_are_kept_apart_without_a_mask_of_the_square_of_their_row() -> None:
    long = {"sequence_length": 1024, "model": MODELS["llama"] | {"max_position_embeddings": 1024}}

    within, causal = (forecast(train_params("llama", attention=kind, **long)) for kind in ("document", "causal"))

    assert within.total == pytest.approx(causal.total, rel=0.02)


def test_each_part_is_what_it_says() -> None:
    values = train_params("llama", optimizer__name="adamw")
    weights = sum(parameter.nbytes for parameter in build_model(values, vocabulary(VOCABULARY)).parameters())

    one, several = forecast(values).parts, forecast(values, micro_batches=2).parts

    assert one["weights"] == pytest.approx(weights, rel=0.01)
    assert one["optimizer"] == pytest.approx(2 * weights, rel=0.01)
    assert several["gradients"] == pytest.approx(weights, rel=0.01)
    assert several["activations"] == pytest.approx(one["activations"], rel=0.05)
    assert one["loss"] > 0


def test_deterministic_sums_hold_the_gradients_of_each_level_of_their_tree() -> None:
    values = train_params("llama", deterministic_micro_batch_size=ROWS)

    four, eight = (forecast(values, micro_batches).parts for micro_batches in (4, 8))

    assert eight["gradients"] - four["gradients"] == pytest.approx(four["weights"], rel=0.01)


@pytest.mark.parametrize(("micro_batches", "copies"), [(1, 1), (2, 2), (4, 2)])
def test_sums_of_other_micro_batches_lie_next_to_the_buckets_of_an_exchange(micro_batches: int, copies: int) -> None:
    values = train_params("llama")

    parts = forecast(values, micro_batches, has_buckets=True).parts

    assert parts["gradients"] == copies * forecast(values, 2).parts["gradients"]


def test_a_sharded_process_holds_its_share_of_the_state_and_a_few_gathered_layers() -> None:
    values = train_params("llama", model={**MODELS["llama"], "num_hidden_layers": 6}, optimizer__name="adamw")

    whole, sharded = forecast(values).parts, forecast(values, shards=4).parts

    assert sharded["optimizer"] == pytest.approx(whole["optimizer"] / 4, rel=0.01)
    assert whole["weights"] / 4 < sharded["weights"] < whole["weights"]
    assert sharded["activations"] == whole["activations"]
    deep = train_params("gpt2", model={**MODELS["gpt2"], "n_layer": 12}, optimizer__name="adamw")
    assert forecast(deep, shards=4).total < forecast(deep).total


def test_of_a_model_that_runs_by_its_values_the_state_is_known_and_the_rest_is_not() -> None:
    found = forecast(train_params("llama", model=MAMBA2))

    assert found.reason
    assert set(found.parts) == {"weights", "gradients", "optimizer"}


@pytest.mark.parametrize("model", MODELS)
def test_the_head_that_a_trial_finds_plain_is_found_without_values(model: str) -> None:
    values = train_params(model)

    real = plain_head.has_plain_head(build_model(values, vocabulary(VOCABULARY)))
    with FakeTensorMode(), MemoryTracker():
        fake = AutoModelForCausalLM.from_config(build_config(values, vocabulary(VOCABULARY)))
        found = has_plain_head(fake, TOKENS)

    assert found == real
