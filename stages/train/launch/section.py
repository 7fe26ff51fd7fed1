"""What the command tells its workers: the `train` section as it read it, once, and how it launches them.

An edit of params.yaml during a run changes nothing that is computed, also not in workers that are started again.
"""

import os

import yaml

from stages.runtime.launch.config import LaunchConfig
from stages.runtime.section import read_section
from stages.train.params import TrainParams

VARIABLE = "PARROTFLOW_TRAIN_SECTION"
LAUNCH_SETTINGS = "PARROTFLOW_LAUNCH_SETTINGS"

RECORDED = {"compute_environment", "distributed_type", "num_machines", "num_processes", "use_cpu"}
RECORDED |= {"fsdp_config", "parallelism_config", "enable_cpu_affinity"}
"""Keys of an accelerate config that go on record: none with addresses, and none that has no effect."""


def pass_on(params: TrainParams, config: LaunchConfig) -> dict[str, str]:
    """The environment variables that hand the section to workers, and what of the launch goes on record (as YAML)."""
    settings = yaml.safe_load(config.path.read_text(encoding="utf-8"))
    kept = {name: value for name, value in settings.items() if name in RECORDED}
    return {VARIABLE: params.model_dump_json(), LAUNCH_SETTINGS: yaml.safe_dump(kept)}


def section_of_command() -> TrainParams:
    """The section that the command read; from params.yaml where a worker was started without the command."""
    if given := os.environ.get(VARIABLE):
        return TrainParams.model_validate_json(given)
    return read_section("train", TrainParams)
