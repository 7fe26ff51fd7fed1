"""Of a model that is sharded only the main process holds values on the host, and all shards are parts of them."""

import os
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from stages.formats.splits import TRAIN
from stages.formats.tokens import TOKENS, TokenStore
from stages.train.distributed import sharded_build
from stages.train.distributed.parallel import full_weights
from stages.train.loop import StopSignal
from stages.train.model.build import build_model
from stages.train.params import TrainParams
from stages.train.worker import set_up
from tests.train.models import MODELS
from tests.train.small_run import params, run_workers, write_project


def values_of(model: str) -> TrainParams:
    return TrainParams.model_validate(params(model=MODELS[model], precision="fp32", gradient_checkpointing=True))


def set_up_all() -> None:
    """In each process of a launch."""
    for name in ("gpt2", "llama", "qwen3_moe"):
        built: list[str] = []

        def counted(*arguments: object, name: str = name, built: list[str] = built) -> object:
            built.append(name)
            return build_model(*arguments)  # type: ignore[arg-type]

        sharded_build.build_model = counted  # type: ignore[assignment]
        setup = set_up(values_of(name), StopSignal())
        main = setup.accelerator.is_main_process
        assert built == ([name] if main else [])
        weights = full_weights(setup.eager.model)
        buffers = {key: value.clone() for key, value in setup.eager.model.named_buffers()}
        torch.save(
            (weights, buffers, setup.eager.plain_head, setup.eager.model.config._attn_implementation),
            f"{name}-{os.environ['RANK']}.pt",
        )


def test_the_shards_are_parts_of_what_one_process_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = write_project(tmp_path / "project")
    run_workers(project, 2, set_up_all, ACCELERATE_USE_FSDP="true", PARROTFLOW_MICRO_BATCH="2")
    monkeypatch.chdir(project)
    for name in ("gpt2", "llama", "qwen3_moe"):
        alone = build_model(values_of(name), TokenStore(TOKENS / TRAIN).manifest)
        weights, *of_main = torch.load(f"{name}-0.pt", weights_only=True)
        _, *of_other = torch.load(f"{name}-1.pt", weights_only=True)
        expected = get_model_state_dict(alone)
        assert weights.keys() == expected.keys()
        assert all(value.equal(weights[key]) for key, value in expected.items())
        assert of_main[1:] == of_other[1:] == [of_main[1], alone.config._attn_implementation]
        for buffers in (of_main[0], of_other[0]):
            assert all(value.equal(buffers[key]) for key, value in alone.named_buffers())
