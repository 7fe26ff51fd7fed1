"""The `train` section as the command read it: once, for its workers and for those that it starts again.

An edit of params.yaml during a run changes nothing that is computed.
"""

import os

from stages.runtime.section import read_section
from stages.train.params import TrainParams

VARIABLE = "PARROTFLOW_TRAIN_SECTION"


def pass_on(params: TrainParams) -> dict[str, str]:
    """The environment variable that hands the section to workers."""
    return {VARIABLE: params.model_dump_json()}


def section_of_command() -> TrainParams:
    """The section that the command read; from params.yaml where a worker was started without the command."""
    if given := os.environ.get(VARIABLE):
        return TrainParams.model_validate_json(given)
    return read_section("train", TrainParams)
