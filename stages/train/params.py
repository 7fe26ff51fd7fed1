"""The `train` section of params.yaml."""

from pydantic import ValidationInfo, field_validator

from stages.runtime.section import PositiveInteger
from stages.train.compute.params import ComputingParams


class TrainParams(ComputingParams):
    """WHAT is computed. How (processes, devices, micro-batch) follows from the hardware and the environment."""

    evaluation_sequences: PositiveInteger
    """Held-out sequences of each evaluation during training."""
    export_steps: list[PositiveInteger]
    """After these steps the model is also exported, as `model/step-N`."""

    @field_validator("export_steps")
    @classmethod
    def _within_the_run(cls, value: list[int], info: ValidationInfo) -> list[int]:
        max_steps = info.data.get("max_steps")
        if max_steps and (late := [step for step in value if step > max_steps]):
            raise ValueError(f"{late[0]} is beyond train.max_steps = {max_steps}; remove it or train longer")
        return sorted(value)
