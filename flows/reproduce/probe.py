"""The libraries of an interpreter, and its processor, as one line of JSON.

Run as a script by another interpreter, which need not have this project: the standard library only, and torch if it is
there.
"""

import json
import platform
import re
import sys
from importlib.metadata import distributions


def probe() -> dict[str, object]:
    """Versions by normalised name (PEP 503), the processor's instructions, what torch finds."""
    libraries = {
        re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower(): item.version.split("+")[0]
        for item in reversed(list(distributions()))
        if item.metadata["Name"]
    }
    found: dict[str, object] = {
        "python": platform.python_version(),
        "versions": libraries,
        "flags": [],
        "accelerators": [],
        "cpu_capability": None,
    }
    try:
        import torch
    except ImportError:
        return found
    found["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    found["flags"] = sorted(name for name, has in torch.cpu.get_capabilities().items() if has is True)
    found["accelerators"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return found


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
