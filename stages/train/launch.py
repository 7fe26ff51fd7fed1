"""Starts the workers by `accelerate launch`, with the user's own configuration or one of `launch/`.

`PARROTFLOW_LAUNCH` names a file in `launch/` (without its ending) or any accelerate config file. Unset, the user's own
`accelerate config` counts where there is one, else `launch/one_gpu` or `launch/cpu` by what the machine has. How a run
is launched is never part of what it computes.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import yaml
from accelerate.commands.config.config_args import (
    default_json_config_file,
    default_yaml_config_file,
)

from stages.formats.entry import UserError

VARIABLE = "PARROTFLOW_LAUNCH"
PRESETS = Path("launch")


def launch() -> None:
    """Run the workers to their end and leave with their exit code."""
    config = config_file()
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    command += ["-m", "stages.train.worker"]
    print(f"launching by {config}", flush=True)
    process = subprocess.Popen(command, env=environment(config))

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    if code := process.wait():
        raise SystemExit(code)


def config_file() -> Path:
    """The accelerate configuration to launch with. Raises UserError where a named one does not exist."""
    if name := os.environ.get(VARIABLE):
        for path in (PRESETS / f"{name}.yaml", Path(name)):
            if path.is_file():
                return path
        presets = ", ".join(sorted(path.stem for path in PRESETS.glob("*.yaml")))
        raise UserError(f"{VARIABLE}={name}: no such file, and no preset (there are {presets})")
    for path in (Path(default_yaml_config_file), Path(default_json_config_file)):
        if path.is_file():
            return path
    return PRESETS / ("one_gpu.yaml" if has_gpu() else "cpu.yaml")


def has_gpu() -> bool:
    """Whether CUDA sees a device, asked without importing torch into this process for good."""
    import torch

    return torch.cuda.is_available()


def environment(config: Path) -> dict[str, str]:
    """The workers' environment. accelerate starts several CPU processes only with this variable set."""
    values = dict(os.environ)
    settings = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
    if settings.get("use_cpu"):
        values["ACCELERATE_USE_CPU"] = "true"
    return values
