"""Which tasks of lm-evaluation-harness are run, and how."""

from typing import Annotated

from pydantic import Field

from stages.runtime.section import Section


class HarnessParams(Section):
    """The section `harness` of params.yaml."""

    tasks: tuple[str, ...]
    """Names of tasks, groups and tags: lm-eval's own, and those of the files in `evaluation/tasks/`. May be empty."""
    exported_steps: bool
    """Score the models of `train.export_steps` too."""
    num_fewshot: Annotated[int, Field(ge=0)] | None
    """Examples before each question; null: as many as each task says. A task whose file says 0 keeps 0."""
    limit: Annotated[int, Field(ge=1)] | None
    """Documents of each task, the first ones; null: all. Only without a limit are scores comparable with others."""
    bootstrap_resamples: Annotated[int, Field(ge=100)]
    """Bootstrap resamples for standard errors that have no formula."""
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    """Seed for few-shot examples, sampled answers and the bootstrap."""
