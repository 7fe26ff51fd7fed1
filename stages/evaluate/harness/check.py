"""Checks that every name in `harness.tasks` is a task: `python -m stages.evaluate.harness.check`."""

import re

from stages.evaluate.harness.params import TASK_FILES, HarnessParams
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage


def main() -> None:
    """Raise UserError if a task is neither the project's nor lm-eval's."""
    params = read_section("harness", HarnessParams)
    texts = (file.read_text(encoding="utf-8") for file in TASK_FILES.rglob("*.yaml"))
    if not {*params.tasks} <= {name for text in texts for name in re.findall(r"^(?:task|group): *(\w+)", text, re.M)}:
        from stages.evaluate.harness.scoring import managers  # importing lm-eval takes many seconds

        managers(params)


if __name__ == "__main__":
    run_stage(main)
