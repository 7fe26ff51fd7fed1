"""Checks that folders in `evaluate.baselines` hold complete models: `python -m stages.evaluate.likelihood.check`."""

from pathlib import Path

from stages.evaluate.params import EvaluateParams
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage


def main() -> None:
    """Raise UserError if a folder's model is incomplete; no weights are read."""
    params = read_section("evaluate", EvaluateParams)
    for name in params.baselines:
        if Path(name).is_dir():  # otherwise it is on the Hub, or a stage has yet to write it
            from stages.evaluate.model import open_model  # importing torch takes seconds

            open_model(Path(name), "meta")


if __name__ == "__main__":
    run_stage(main)
