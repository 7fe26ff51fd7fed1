"""The section `harness` of params.yaml."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from stages.runtime.section import Section

TASK_FILES = Path("evaluation/tasks")
"""The project's own task files, with the data and the Python files that they use."""


class HarnessParams(Section):
    """The section `harness` of params.yaml."""

    tasks: tuple[str, ...]
    """Names of tasks, groups and tags: lm-eval's own, and those in `evaluation/tasks/`. May be empty."""
    num_fewshot: Annotated[int, Field(ge=0)] | None
    """Examples before each question. Null: each task's own number. A task whose file says 0 keeps 0."""
    limit: Annotated[int, Field(ge=1)] | None
    """Score only the first documents of each task. Null: all. Scores with a limit are not comparable with others."""
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    """Seed for few-shot examples, sampled answers and the bootstrap."""
