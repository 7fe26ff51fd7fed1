"""A model whose tokens see later ones is refused: it would be trained on what it sees, and scored so."""

import pytest

from stages.formats.tokens import Manifest
from stages.runtime.entry import UserError
from stages.train.model.build import build_model
from stages.train.params import TrainParams
from tests.train.small_run import params

BERT = {
    "model_type": "bert",
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


def build(**fields: object) -> None:
    values = TrainParams.model_validate(params(model=fields))
    build_model(values, Manifest("uint16", 64, 0, "", "", ()))


def test_bert_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        build(**BERT)
    assert str(caught.value) == (
        "params.yaml: train.model.model_type = 'bert': not causal: a token's prediction depends on the tokens "
        "after it; set train.model.is_decoder: true, or use a causal model_type, e.g. gpt2, llama, qwen3, gpt_neox"
    )


def test_bert_as_a_decoder_is_causal() -> None:
    build(**BERT, is_decoder=True)


def test_a_sequence_shorter_than_the_trial_is_no_obstacle() -> None:
    values = TrainParams.model_validate(params(sequence_length=2, model__n_positions=2))
    assert build_model(values, Manifest("uint16", 64, 0, "", "", ())).config.n_positions == 2
