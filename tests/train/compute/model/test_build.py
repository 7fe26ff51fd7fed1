"""Models from configs: presets, sizes, export. A model whose tokens see later ones is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from stages.runtime.errors import UserError
from stages.train.compute.model.build import build_config, build_model, padded_vocabulary
from stages.train.compute.model.flops import flops_per_token
from stages.train.params import TrainParams
from stages.train.planned import model_without_weights
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import ROOT, params, run_workers, write_project

SIZES = {"gpt2": 124e6, "gpt2_medium": 354e6, "gpt2_large": 774e6, "gpt2_xl": 1558e6}


def preset(name: str) -> TrainParams:
    values = yaml.safe_load((ROOT / f"conf/model/{name}.yaml").read_text(encoding="utf-8"))
    return TrainParams.model_validate(params(model=values["model"], sequence_length=values["sequence_length"]))


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf/model").glob("*.yaml")))
def test_every_preset_is_a_model_that_transformers_knows(name: str) -> None:
    assert build_config(preset(name), vocabulary(300)).vocab_size == 300


@pytest.mark.parametrize(("name", "parameters"), SIZES.items())
def test_gpt2_presets_have_the_published_sizes(name: str, parameters: float) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(build_config(preset(name), vocabulary(50257)))
    assert model.num_parameters() == pytest.approx(parameters, rel=0.005)


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
"""Grouped heads that are together wider than the model, and a gated MLP."""


def tiny(**fields: Any) -> PreTrainedModel:
    config = build_config(TrainParams.model_validate(params(model=fields, sequence_length=32)), vocabulary(320))
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32},
        LLAMA | {"tie_word_embeddings": False},
        LLAMA | {"model_type": "qwen3", "tie_word_embeddings": True},
    ],
    ids=["gpt2", "llama", "qwen3"],
)
def test_the_flops_are_what_torch_counts_and_those_of_biases_and_norms(fields: dict[str, Any]) -> None:
    model, row = tiny(**fields), torch.arange(32)[None]

    with FlopCounterMode(display=False) as counter:
        model(input_ids=row, use_cache=False).logits.sum().backward()

    biases_and_norms = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
    assert flops_per_token(model, 32) - 6 * biases_and_norms == counter.get_total_flops() / 32


def test_the_flops_of_a_hybrid_are_what_torch_counts_of_its_matrices_and_those_of_vectors_and_kernels() -> None:
    fields = {"model_type": "lfm2", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": ["conv", "full_attention", "conv"]}
    model, row = tiny(**fields, **heads), torch.arange(32)[None]

    with FlopCounterMode(display=False) as counter:
        model(input_ids=row, use_cache=False).logits.sum().backward()

    # torch counts the backward pass of a depthwise convolution as if each channel read all others.
    counted = counter.get_flop_counts()["Global"]
    matrices = counted[torch.ops.aten.mm] + counted[torch.ops.aten.bmm]
    kernels = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Conv1d))
    vectors = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
    assert flops_per_token(model, 32) - 6 * (vectors + kernels) == matrices / 32


def test_recurrent_layers_have_no_products_that_grow_with_the_sequence() -> None:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    linear = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    fields = {"hidden_size": 32, "num_hidden_layers": 3, "layer_types": kinds, "shared_expert_intermediate_size": 8}
    model = tiny(model_type="qwen3_next", **fields, **heads, **linear, **experts)

    assert flops_per_token(model, 64) - flops_per_token(model, 32) == 12 * 1 * (2 * 16) * 32


def test_a_model_without_attention_has_none_of_its_products() -> None:
    fields = {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    assert flops_per_token(tiny(**fields), 32) == flops_per_token(tiny(**fields), 64)


def test_the_vocabulary_is_padded_for_speed() -> None:
    assert [padded_vocabulary(size) for size in (1, 64, 65, 50257)] == [64, 64, 128, 50304]
    model = build_model(TrainParams.model_validate(params()), vocabulary(300))
    assert model.get_input_embeddings().weight.shape == (320, 16)


def test_others_load_the_model_folder(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", model=MODELS["llama"], max_steps=4, export_steps=[2])
    run_workers(project, 1)
    for folder in (project / "model", project / "model/step-00000002"):
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        assert loaded.get_input_embeddings().weight.shape[0] == loaded.config.vocab_size == 300
    ids = AutoTokenizer.from_pretrained(project / "model")("add(1, 2)", return_tensors="pt").input_ids
    assert loaded.generate(ids, max_new_tokens=4, do_sample=False).shape[1] <= ids.shape[1] + 4


@pytest.mark.parametrize("tied", [True, False])
def test_a_given_model_with_a_padded_vocabulary_keeps_the_logits_of_the_ids(tmp_path: Path, tied: bool) -> None:
    """Here 384 rows for 300 ids. The training's own padding to 320 rows is cut at export as ever."""
    original = tiny(**LLAMA, tie_word_embeddings=tied)
    original.resize_token_embeddings(384)
    original.save_pretrained(tmp_path)
    start = TrainParams.model_validate(params(start_from=str(tmp_path), model={}))
    ids = torch.arange(288, 300)[None]

    continued = build_model(start, vocabulary(300))
    with torch.no_grad():
        logits = continued(input_ids=ids).logits
        torch.testing.assert_close(logits[..., :300], original(input_ids=ids).logits[..., :300])

    assert logits.shape[-1] == 320
    assert (continued.get_input_embeddings().weight is continued.get_output_embeddings().weight) is tied
    with pytest.raises(UserError, match="its vocabulary has 384 entries, the tokens have 385"):
        build_model(start, vocabulary(385))


@pytest.mark.parametrize("model_type", ["phi3", "glm4", "modernbert-decoder", "opt"])
def test_the_id_that_pads_an_architectures_own_vocabulary_is_no_special_id_here(model_type: str) -> None:
    """It would be beyond the vocabulary, or a word whose embedding is never trained."""
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    grouped = {"intermediate_size": 24, "num_key_value_heads": 1, "head_dim": 8}
    own = {"opt": {"ffn_dim": 24, "word_embed_proj_dim": 16}, "modernbert-decoder": {"intermediate_size": 24}}
    own["phi3"] = {"intermediate_size": 24, "num_key_value_heads": 1}
    fields = sizes | own.get(model_type, grouped)
    values = TrainParams.model_validate(params(model={"model_type": model_type, **fields}))
    model = build_model(values, vocabulary(300))
    row = torch.arange(1, 9)[None]

    model(input_ids=row, labels=row, use_cache=False).loss.backward()

    gradient = model.get_input_embeddings().weight.grad
    assert gradient is not None
    assert (gradient[1:8] != 0).any(1).all()
    assert model.config.pad_token_id in (None, 0)


def test_a_model_without_a_limit_of_positions_is_not_refused_for_it() -> None:
    """XLNet writes -1, and is refused for what is true: it is not causal."""
    fields = {"model_type": "xlnet", "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}
    with pytest.raises(UserError, match="'xlnet': not causal"):
        build_model(TrainParams.model_validate(params(model=fields)), vocabulary(300))


def test_a_model_that_is_built_but_computes_nothing_is_refused_in_one_line() -> None:
    fields = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 3}
    with pytest.raises(UserError, match="`llama` with these fields cannot compute the logits of a row of tokens: "):
        build_model(TrainParams.model_validate(params(model=fields)), vocabulary(300))


BERT = {
    "model_type": "bert",
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 16,
}


def build(**fields: object) -> None:
    values = TrainParams.model_validate(params(model=fields))
    build_model(values, vocabulary(64))


def test_bert_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        build(**BERT)
    assert str(caught.value) == (
        "params.yaml: train.model.model_type = 'bert': not causal: a token's prediction depends on the tokens "
        "after it; set train.model.is_decoder: true, or use a causal model_type, e.g. gpt2, llama, qwen3, gpt_neox"
    )


def test_bert_as_a_decoder_is_causal() -> None:
    build(**BERT, is_decoder=True)


@pytest.mark.parametrize("model_type", ["gpt2", "opt", "llama"])
def test_a_new_model_has_as_many_positions_as_its_sequences_have_tokens(model_type: str) -> None:
    values = TrainParams.model_validate(params(model={"model_type": model_type}, sequence_length=64))
    assert build_config(values, vocabulary(300)).max_position_embeddings == 64


def test_learned_positions_that_no_sequence_reaches_are_refused() -> None:
    """They would keep their random values: 1.04 bits per byte in the training were 1.50 over all positions."""
    values = TrainParams.model_validate(params(sequence_length=16, model__n_positions=512))
    said = r"`gpt2` learns 512 positions.* the last 496; set train.model.n_positions=16"
    for build in (build_model, model_without_weights):
        with pytest.raises(UserError, match=said):
            build(values, vocabulary(300))
    rotary = MODELS["llama"] | {"max_position_embeddings": 512}
    build_model(TrainParams.model_validate(params(sequence_length=16, model=rotary)), vocabulary(300))


def test_a_sequence_shorter_than_the_trial_is_no_obstacle() -> None:
    values = TrainParams.model_validate(params(sequence_length=2, model__n_positions=2))
    assert build_model(values, vocabulary(64)).config.n_positions == 2
