"""Values of the `train` section that cannot go together are refused, with the numbers."""

import subprocess
import sys
from typing import Any

import pytest

from stages.runtime.errors import UserError
from stages.runtime.section import check_section
from stages.train.params import TrainParams
from tests.small_project import ROOT
from tests.train.small_run import params

MIXTURE: dict[str, Any] = {"weights": {"web": 1}, "phases": []}


def phases(*after: float) -> dict[str, Any]:
    return {"phases": [{"after": step, "weights": {"web": 1}} for step in after]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"schedule__warmup_steps": 2000, "max_steps": 60},
            "schedule: 2000 steps of warm-up are more than train.max_steps = 60; lower warmup_steps, or train longer",
        ),
        (
            {"schedule__name": "wsd", "schedule__warmup_steps": 20, "schedule__decay_share": 0.9, "max_steps": 100},
            "schedule: 20 steps of warm-up and 90 of decay (decay_share = 0.9) are more than train.max_steps = 100; ",
        ),
        ({"export_steps": [13]}, "export_steps = [13]: 13 is beyond train.max_steps = 12; remove it or train longer"),
        ({"mixture": MIXTURE | {"weights": {"web": 0}}}, "mixture.weights: no source has a weight above 0"),
        (
            {"mixture": MIXTURE | {"weights": {"*": 1}, "phases": [{"after": 3, "weights": {"*": 1, "books": 1}}]}},
            "mixture: weights has `*`, the sources without a weight of their own, and none for `books`, which has one ",
        ),
        (
            {"mixture": MIXTURE | phases(1.5)},
            "mixture.phases.0.after = 1.5: expected a step such as 800, or a share",
        ),
        ({"mixture": MIXTURE | phases(12)}, "mixture: no step follows 12, after which a phase begins (train.max_steps"),
        (
            {"mixture": MIXTURE | phases(6, 0.5)},
            "mixture: with train.max_steps = 12 the phases begin after the steps 6, 6; each must begin later than the ",
        ),
        (
            {"optimizer__name": "adamw", "optimizer__beta": 0.9},
            "optimizer.beta: unknown parameter (value 0.9);",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        check_section("train", params(**changes), TrainParams)
    assert str(caught.value).startswith(f"params.yaml: train.{said}")


def test_the_name_of_the_optimizer_is_changed_alone() -> None:
    values = check_section("train", params(optimizer__name="adamw"), TrainParams)
    assert values.optimizer.peaks == {"adamw": 0.003}
    assert "muon_learning_rate" not in values.optimizer.model_dump()


def test_params_are_read_without_torch() -> None:
    """`parrotflow run` checks them also where there is nothing to do."""
    code = "import sys, stages.train.params; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
