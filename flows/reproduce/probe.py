"""The libraries of an interpreter, and its processor, as one line of JSON.

Run as a script by another interpreter, which need not have this project: the standard library only, and torch where it
is there.
"""

import json
import os
import platform
import re
import runpy
import sys
from importlib.metadata import distributions
from pathlib import Path

wheel_digest = runpy.run_path(str(Path(__file__).parents[2] / "stages/formats/revision/wheels.py"))["wheel_digest"]


def probe() -> dict[str, object]:
    """Versions by normalised name (PEP 503) and the wheels, the processor's instructions, what torch finds."""
    libraries = {
        re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower(): item
        for item in reversed(list(distributions()))
        if item.metadata["Name"]
    }
    found: dict[str, object] = {
        "python": platform.python_version(),
        "versions": {name: item.version.split("+")[0] for name, item in libraries.items()},
        "builds": {name: item.version for name, item in libraries.items() if "+" in item.version},
        "wheels": {name: digest for name, item in libraries.items() if (digest := wheel_digest(item))},
        "flags": [],
        "system": f"{platform.system()} {platform.machine()}",
        "accelerators": [],
        "cpu_capability": None,
        "cores": None,
    }
    try:
        import torch
    except ImportError:
        return found
    found["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    found["flags"] = sorted(name for name, has in torch.cpu.get_capabilities().items() if has is True)
    found["cores"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found["accelerators"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return found


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
