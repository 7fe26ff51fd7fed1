"""What FSDP gathers at a time: a layer of the transformer, never one of its experts."""

import pytest

from stages.train.distributed.parallel import blocks
from stages.train.model.build import build_model
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams
from tests.train.models import MODELS, vocabulary
from tests.train.small_run import params


@pytest.mark.parametrize("name", MODELS)
def test_a_block_is_a_layer_whatever_lists_a_layer_holds(name: str) -> None:
    values = TrainParams.model_validate(params(model=MODELS[name]))
    model = CausalLoss(build_model(values, vocabulary()), values)
    found = list(blocks(model))
    assert len(found) == model.model.config.num_hidden_layers
    assert all("Layer" in type(block).__name__ or "Block" in type(block).__name__ for block in found)
