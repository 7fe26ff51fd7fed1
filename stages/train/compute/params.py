"""The part of the `train` section of params.yaml that the weights depend on."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field, ValidationInfo, field_validator

from stages.formats.model_folder import CHECKPOINTS, MODEL
from stages.runtime.hub import ModelName
from stages.runtime.section import FixedFile, PositiveInteger, Section
from stages.train.compute.mixture import Mixture
from stages.train.compute.optim.settings import AdamWSettings, MuonSettings, Precision
from stages.train.compute.schedule import Schedule

AnyOptimizer: TypeAlias = AdamWSettings | MuonSettings


class DataOrder(Section):
    """Everything that determines the order of the data."""

    seed: Annotated[int, Field(ge=0, lt=2**64)]
    """Seed of the weights, the data order and dropout."""
    max_steps: PositiveInteger
    """Optimizer steps."""
    global_batch_size: PositiveInteger
    """Sequences per optimizer step, over all processes."""
    sequence_length: Annotated[int, Field(ge=2)]
    """Tokens in a training sequence, and positions of a new model unless `train.model` sets them."""
    mixture: Mixture | None
    """Shares of the tokens that come from each source, which may change during the run. Null: each epoch reads every
    row once, so the shares are those of the corpus."""

    def draws_of_step(self, step: int) -> range:
        """The numbers of the rows that `step` (from 0) trains on, counted from the start of the run."""
        return range(step * self.global_batch_size, (step + 1) * self.global_batch_size)

    @field_validator("mixture")
    @classmethod
    def _phases_within_the_run(cls, value: Mixture | None, info: ValidationInfo) -> Mixture | None:
        if value and (max_steps := info.data.get("max_steps")):
            value.check_steps(max_steps)
        return value


class ComputingParams(DataOrder):
    """All parameters that the weights depend on; a training can continue only with the same values."""

    model: dict[str, Any]
    """Fields of a transformers config; `model_type` names the architecture. The tokenizer sets the vocabulary. With a
    model in `start_from`: the fields of its config to change; `{}` for none."""
    start_from: ModelName | None
    """A model folder or `owner/name@COMMIT` of the Hub: its weights. A checkpoint of another run
    (`.parrotflow/checkpoints/RUN/step-N`): its weights, optimizer state and step. Null: random weights."""
    attention: Literal["causal", "document"]
    """causal: a token attends to all earlier tokens of its row; document: only to those of its own document, with
    positions from 0."""
    deterministic_micro_batch_size: PositiveInteger | None
    """Sequences in a micro-batch. If set, gradients are summed over micro-batches in a fixed binary tree: the same bits
    on any number of processes, at the cost of memory and traffic. Null: size and order depend on the hardware."""
    optimizer: Annotated[AnyOptimizer, Field(discriminator="name")]
    """How gradients become updates. Settings that only other optimizers read are allowed and have no effect."""
    schedule: Schedule
    """The learning rate over the steps."""
    max_gradient_norm: Annotated[float, Field(gt=0)]
    """Gradients are scaled down to this global L2 norm."""
    precision: Precision
    """Precision of the matrix products; weights, sums and the loss stay in fp32. auto: bf16 if it is fast on the
    hardware (GPUs with bf16, CPUs with AMX), else fp32."""
    head_rows: PositiveInteger | None
    """Rows of the output matrix that a training step draws, besides those of a sequence's own targets, to estimate the
    softmax's sum over the vocabulary. Held-out losses and the exported model use all rows. Null: all."""
    gradient_checkpointing: bool
    """Recompute activations in the backward pass, for less memory and about a third more compute."""

    @property
    def tokens(self) -> int:
        """Tokens that the whole run trains on, counted again in each epoch."""
        return self.max_steps * self.global_batch_size * self.sequence_length

    @property
    def start_checkpoint(self) -> Path | None:
        """The checkpoint in `start_from`; None if it is a model or null."""
        path = Path(self.start_from or "")
        return path if path.resolve().is_relative_to(CHECKPOINTS.resolve()) else None

    @property
    def start_model(self) -> str | None:
        """The model in `start_from`; None if it is a checkpoint or null."""
        return None if self.start_checkpoint else self.start_from

    @field_validator("optimizer", mode="before")
    @classmethod
    def _without_what_others_read(cls, value: Any) -> Any:
        """Drop settings that only other optimizers read, so that `name` can be changed alone."""
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

    @field_validator("start_from")
    @classmethod
    def _outside_own_outs(cls, value: str | None) -> str | None:
        if value is not None and Path(value).resolve().is_relative_to(MODEL.resolve()):
            raise ValueError(f"{MODEL}/ is what this stage writes, and DVC deletes it first; copy the model elsewhere")
        is_checkpoint = Path(value or "").resolve().is_relative_to(CHECKPOINTS.resolve())
        return FixedFile(value) if value and is_checkpoint else value
