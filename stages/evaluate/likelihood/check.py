"""Whether the folders of `evaluate.baselines` hold whole models: `python -m stages.evaluate.likelihood.check`."""

from pathlib import Path

from stages.evaluate.params import EvaluateParams
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage


def main() -> None:
    """Raise UserError that names a folder whose model is not whole; no weights are read."""
    params = read_section("evaluate", EvaluateParams)
    for name in params.baselines:
        if Path(name).is_dir():  # else it is on the Hub, or still to be made
            from stages.evaluate.model import open_model  # the import takes seconds

            open_model(Path(name), "meta")


if __name__ == "__main__":
    run_stage(main)
