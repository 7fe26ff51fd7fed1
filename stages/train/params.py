"""The `train` section of params.yaml."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from stages.formats.model_folder import MODEL
from stages.runtime.section import Section

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Optimizer(Section):
    """How gradients become updates."""

    name: Literal["adamw", "muon"]
    """adamw for everything, or muon for the hidden matrices and adamw for the rest (`stages.train.optim.roles`)."""
    adamw_learning_rate: Rate
    """Peak rate of AdamW."""
    muon_learning_rate: Rate
    """Peak rate of Muon, scaled so that AdamW's values carry over; unused by adamw."""
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    """AdamW's decay rates of the first and the second moment."""
    epsilon: Annotated[float, Field(gt=0)]
    """AdamW's denominator floor."""
    momentum: Share
    """Muon's momentum; unused by adamw."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Decoupled, on what activations are multiplied with; embeddings, norms, biases and tables are not decayed."""


class Schedule(Section):
    """The learning rate as a share of its peak, a function of the step alone."""

    name: Literal["cosine", "linear", "constant", "wsd"]
    """wsd holds the peak until the last `decay_share` of all steps (warm-up, stable, decay)."""
    warmup_steps: Annotated[int, Field(ge=0)]
    """Steps of linear growth from 0 to the peak."""
    final_share: Share
    """Where the rate ends, as a share of the peak."""
    decay_share: Share
    """Share of all steps, warm-up among them, in which wsd decays; unused by the others."""

    @property
    def is_extensible(self) -> bool:
        """Whether the rates of the first steps do not depend on how many follow, so that a run can be made longer."""
        return self.name in ("constant", "wsd")

    def decay_steps(self, max_steps: int) -> float:
        """The steps in which wsd decays, at the end of a run."""
        return self.decay_share * max_steps if self.name == "wsd" else 0.0


class TrainParams(Section):
    """WHAT is computed. How (processes, devices, micro-batch) follows from the hardware and the environment."""

    seed: Annotated[int, Field(ge=0)]
    """Of the weights, the data order and dropout."""
    model: dict[str, Any]
    """A transformers config by its fields; `model_type` names the architecture. The vocabulary is the tokenizer's."""
    start_from: str | None
    """A model folder, or `owner/name@COMMIT` of the Hub, whose weights are continued; null starts from random ones."""
    sequence_length: Annotated[int, Field(ge=2)]
    """Tokens in a training sequence."""
    packing: Literal["best_fit", "concatenate"]
    """best_fit cuts documents only where they are longer than a sequence; concatenate chops the stream."""
    attention: Literal["causal", "document"]
    """causal: a token attends to all earlier tokens of its row; document: only to those of its own document, whose
    positions count from 0."""
    global_batch_size: Positive
    """Sequences per optimizer step, over all processes; of the first steps where `batch_doublings` says more."""
    deterministic_micro_batch_size: Positive | None
    """Sequences. Set, gradients are summed over micro-batches of this size in a fixed binary tree: the same bits on any
    number of processes, for more memory and traffic. Null leaves size and order to the hardware."""
    max_steps: Positive
    """Optimizer steps."""
    optimizer: Optimizer
    """How gradients become updates."""
    schedule: Schedule
    """The learning rate over the steps."""
    batch_doublings: Annotated[list[Positive], Field(max_length=8)]
    """After these steps the global batch is twice as large as before: many small steps early, few large ones later."""
    max_gradient_norm: Annotated[float, Field(gt=0)]
    """Gradients are scaled down to this global L2 norm."""
    precision: Literal["auto", "bf16", "fp32"]
    """Of the matrix products; weights, sums and the loss stay in fp32. auto: bf16 where the hardware multiplies it fast
    (GPUs with bf16, CPUs with AMX), fp32 elsewhere."""
    gradient_checkpointing: bool
    """Recompute activations in the backward pass: less memory, about a third more compute."""
    log_every_steps: Positive
    """Steps between two points of the training curves."""
    evaluate_every_steps: Positive
    """Steps between two evaluations on held-out sequences."""
    evaluation_sequences: Positive
    """Held-out sequences of each evaluation during training."""
    checkpoint_every_steps: Positive
    """Steps between two checkpoints; a crash loses at most that many."""
    checkpoints_kept: Positive
    """How many of the newest are kept."""
    milestone_every_steps: Positive | None
    """Checkpoints of every that many steps are never deleted; null: only the newest are kept."""
    export_steps: list[Positive]
    """After these steps the model is also written as `model/step-N`, loadable."""
    trackers: list[Literal["wandb", "tensorboard", "trackio", "mlflow"]]
    """Where to follow the run besides reports/curves."""

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

    @field_validator("batch_doublings")
    @classmethod
    def _increasing_and_before_the_end(cls, value: list[int], info: ValidationInfo) -> list[int]:
        if any(step >= later for step, later in pairwise(value)):
            raise ValueError("each step must be later than the one before it")
        max_steps, schedule = info.data.get("max_steps"), info.data.get("schedule")
        # A run that can be made longer may double its batch then.
        if max_steps and schedule and not schedule.is_extensible and value and value[-1] >= max_steps:
            raise ValueError(f"no step follows {value[-1]} (train.max_steps = {max_steps}); remove it or train longer")
        return value

    @field_validator("export_steps")
    @classmethod
    def _within_the_run(cls, value: list[int], info: ValidationInfo) -> list[int]:
        max_steps = info.data.get("max_steps")
        if max_steps and (late := [step for step in value if step > max_steps]):
            raise ValueError(f"{late[0]} is beyond train.max_steps = {max_steps}; remove it or train longer")
        return value

    @field_validator("start_from")
    @classmethod
    def _outside_own_outs(cls, value: str | None) -> str | None:
        if value is not None and Path(value).resolve().is_relative_to(MODEL.resolve()):
            raise ValueError(f"{MODEL}/ is what this stage writes, and DVC deletes it first; copy the model elsewhere")
        return value
