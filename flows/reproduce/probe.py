"""Prints an interpreter's libraries and processor as a line of JSON.

Other interpreters run it as a script, so it imports only the standard library, and torch if it is installed.
"""

import json
import platform
import re
import sys
from importlib.metadata import distributions


def probe() -> dict[str, object]:
    """Library versions by normalized name (PEP 503), the processor's instruction sets, and torch's GPUs."""
    libraries = {
        re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower(): item.version.split("+")[0]
        for item in reversed(list(distributions()))
        if item.metadata["Name"]
    }
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "versions": libraries,
        "flags": [],
        "accelerators": [],
        "cpu_capability": None,
    }
    try:
        import torch
    except ImportError:
        return facts
    facts["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    facts["flags"] = sorted(name for name, has in torch.cpu.get_capabilities().items() if has is True)
    facts["accelerators"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return facts


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
