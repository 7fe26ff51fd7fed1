"""The section `harness` of params.yaml."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from stages.runtime.section import Section, value_at

TASK_FILES = Path("evaluation/tasks")
"""The project's own task files, with the data and the Python files that they use."""


class HarnessParams(Section):
    """The section `harness` of params.yaml."""

    tasks: tuple[str, ...]
    """Names of tasks, groups and tags: lm-eval's own, and those in `evaluation/tasks/`. May be empty."""
    exported_steps: bool
    """Score the models of `train.export_steps` too."""
    num_fewshot: Annotated[int, Field(ge=0)] | None
    """Examples before each question. Null: each task's own number. A task whose file says 0 keeps 0."""
    limit: Annotated[int, Field(ge=1)] | None
    """Score only the first documents of each task. Null: all. Scores with a limit are not comparable with others."""
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    """Seed for few-shot examples, sampled answers and the bootstrap."""

    def check(self, others: Mapping[str, Any]) -> Iterator[str]:
        """Check that there are exported steps to score."""
        if self.tasks and self.exported_steps and value_at(others, "train.export_steps") == []:
            yield "harness.exported_steps: train.export_steps is empty; set it, or set harness.exported_steps: false"
