"""The `train` section of params.yaml."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field, ValidationInfo, field_validator

from stages.formats.model_folder import CHECKPOINTS, MODEL
from stages.runtime.hub import ModelName
from stages.runtime.section import FixedFile, Section
from stages.train.data.mixture import Mixture
from stages.train.monitoring.params import PositiveInteger
from stages.train.optim.muon import Muon
from stages.train.optim.settings import AdamW, Fraction, Precision

AnyOptimizer: TypeAlias = AdamW | Muon
"""They are in `optim/`."""


class Schedule(Section):
    """The learning rate as a share of its peak: a function of the step alone, so there is no state to save."""

    name: Literal["cosine", "linear", "constant", "wsd"]
    """wsd holds the peak until the last `decay_share` of all steps (warm-up, stable, decay)."""
    warmup_steps: Annotated[int, Field(ge=0)]
    """Steps of linear growth from 0 to the peak."""
    final_share: Fraction
    """The rate at the end, as a share of the peak."""
    decay_share: Fraction
    """Share of all steps, warm-up among them, in which wsd decays; unused by the others."""

    def decay_steps(self, max_steps: int) -> float:
        """The steps in which wsd decays, at the end of a run."""
        return self.decay_share * max_steps if self.name == "wsd" else 0.0

    def multiplier(self, step: int, max_steps: int) -> float:
        """The share of the peak learning rate at `step` (from 0) of `max_steps`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return self.final_share + (1 - self.final_share) * self._shape(step, max_steps)

    def _shape(self, step: int, max_steps: int) -> float:
        """From 1 at the end of the warm-up towards 0 at the end of the run."""
        progress = (step - self.warmup_steps) / max(1, max_steps - self.warmup_steps)
        match self.name:
            case "constant":
                return 1.0
            case "linear":
                return 1 - progress
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * progress))
            case "wsd":
                decay = self.decay_steps(max_steps)
                return min(1.0, (max_steps - step) / decay) if decay else 1.0


class TrainParams(Section):
    """WHAT is computed. How (processes, devices, micro-batch) follows from the hardware and the environment."""

    seed: Annotated[int, Field(ge=0, lt=2**64)]
    """Seed of the weights, the data order and dropout."""
    model: dict[str, Any]
    """A transformers config by its fields; `model_type` names the architecture. The vocabulary is the tokenizer's. With
    a model in `start_from`: the fields of its config that are changed; `{}` for none."""
    start_from: ModelName | None
    """A model folder or `owner/name@COMMIT` of the Hub: its weights. A checkpoint of another run
    (`.parrotflow/checkpoints/RUN/step-N`): its weights, optimizer state and step. Null: random weights."""
    sequence_length: Annotated[int, Field(ge=2)]
    """Tokens in a training sequence."""
    attention: Literal["causal", "document"]
    """causal: a token attends to all earlier tokens of its row; document: only to those of its own document, whose
    positions count from 0."""
    global_batch_size: PositiveInteger
    """Sequences per optimizer step, over all processes."""
    deterministic_micro_batch_size: PositiveInteger | None
    """Sequences in a micro-batch. If set, gradients are summed over micro-batches in a fixed binary tree: the same bits
    on any number of processes, for more memory and traffic. Null leaves size and order to the hardware."""
    max_steps: PositiveInteger
    """Optimizer steps."""
    optimizer: Annotated[AnyOptimizer, Field(discriminator="name")]
    """How gradients become updates. What only other optimizers read may stay there, and has no effect."""
    schedule: Schedule
    """The learning rate over the steps."""
    mixture: Mixture | None
    """Shares of the tokens that each source of documents gives, and other shares from some step on. Null: every row
    once in each epoch, so each source as it is in the corpus."""
    max_gradient_norm: Annotated[float, Field(gt=0)]
    """Gradients are scaled down to this global L2 norm."""
    precision: Precision
    """Precision of the matrix products; weights, sums and the loss stay in fp32. auto: bf16 if the hardware multiplies
    it fast (GPUs with bf16, CPUs with AMX), else fp32."""
    gradient_checkpointing: bool
    """Recompute activations in the backward pass: less memory, about a third more compute."""
    evaluation_sequences: PositiveInteger
    """Held-out sequences of each evaluation during training."""
    export_steps: list[PositiveInteger]
    """After these steps the model is also written as `model/step-N`, loadable."""

    @property
    def tokens(self) -> int:
        """Tokens that the whole run trains on; one that is read in two epochs counts twice."""
        return self.max_steps * self.global_batch_size * self.sequence_length

    @property
    def start_checkpoint(self) -> Path | None:
        """The checkpoint that `start_from` names, if it names one."""
        path = Path(self.start_from or "")
        return path if path.resolve().is_relative_to(CHECKPOINTS.resolve()) else None

    @property
    def start_model(self) -> str | None:
        """The model that `start_from` names, if it names one."""
        return None if self.start_checkpoint else self.start_from

    @field_validator("optimizer", mode="before")
    @classmethod
    def _without_what_others_read(cls, value: Any) -> Any:
        """So that `name` can be changed alone."""
        kinds = get_args(AnyOptimizer)
        name = value.get("name") if isinstance(value, dict) else None
        for kind in kinds:
            if name in get_args(kind.model_fields["name"].annotation):
                others = {key for other in kinds for key in other.model_fields} - set(kind.model_fields)
                return {key: setting for key, setting in value.items() if key not in others}
        return value

    @field_validator("schedule")
    @classmethod
    def _within_the_steps(cls, value: Schedule, info: ValidationInfo) -> Schedule:
        max_steps = info.data.get("max_steps")
        decay = value.decay_steps(max_steps or 0)
        if max_steps and value.warmup_steps + decay > max_steps:
            decaying = f" and {decay:g} of decay (decay_share = {value.decay_share:g})" if decay else ""
            raise ValueError(
                f"{value.warmup_steps} steps of warm-up{decaying} are more than train.max_steps = {max_steps}; "
                f"lower warmup_steps{' or decay_share' if decay else ''}, or train longer"
            )
        return value

    @field_validator("mixture")
    @classmethod
    def _phases_within_the_run(cls, value: Mixture | None, info: ValidationInfo) -> Mixture | None:
        if value and (max_steps := info.data.get("max_steps")):
            value.check_steps(max_steps)
        return value

    @field_validator("export_steps")
    @classmethod
    def _within_the_run(cls, value: list[int], info: ValidationInfo) -> list[int]:
        max_steps = info.data.get("max_steps")
        if max_steps and (late := [step for step in value if step > max_steps]):
            raise ValueError(f"{late[0]} is beyond train.max_steps = {max_steps}; remove it or train longer")
        return sorted(value)

    @field_validator("start_from")
    @classmethod
    def _outside_own_outs(cls, value: str | None) -> str | None:
        if value is not None and Path(value).resolve().is_relative_to(MODEL.resolve()):
            raise ValueError(f"{MODEL}/ is what this stage writes, and DVC deletes it first; copy the model elsewhere")
        is_checkpoint = Path(value or "").resolve().is_relative_to(CHECKPOINTS.resolve())
        return FixedFile(value) if value and is_checkpoint else value
