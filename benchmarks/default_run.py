"""The default run in a fresh clone of HEAD: the lines it ends with, which README.md shows, and the hash of its weights.

    python -m benchmarks.default_run

The run needs the whole machine. `results/default_run.json` becomes its record.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.measurements import RESULTS, ROOT, commit, machine
from stages.formats.reports import read_json, write_json
from stages.formats.revision.execution import TRAIN_SPEED

RECORD = RESULTS / "default_run.json"
LIBRARIES = ("torch", "transformers", "accelerate")
LISTING = re.compile(r"^stage +result .*?(?=^```|\Z)", re.DOTALL | re.MULTILINE)
"""The table of the stages and what follows it, in the run's output and in README.md."""
MACHINE = re.compile(r"On [^.]+, it ends")
"""README.md names the machine of the record before the listing."""


def main() -> None:
    """Run, record, and write README's listing; say whether the weights are those on record."""
    before = read_json(RECORD)["weights_sha256"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        environment = os.environ | {"PYTHONPATH": folder}
        command = [sys.executable, "-m", "flows.cli", "run"]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        weights = read_json(Path(folder) / TRAIN_SPEED)["weights_sha256"]
    listing = listing_of(done.stdout)
    record = {
        "commit": commit().removesuffix("-dirty"),  # the clone's
        "machine": machine(),
        "versions": {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()},
        "weights_sha256": weights,
        "ended_with": listing.splitlines(),
    }
    write_json(RECORD, record)
    readme = ROOT / "README.md"
    text = LISTING.sub(lambda _: listing, readme.read_text(encoding="utf-8"))
    readme.write_text(MACHINE.sub(f"On {record['machine']}, it ends", text), encoding="utf-8")
    print(f"{listing}\nweights {weights}: {'as before' if weights == before else f'before they were {before}'}")


def listing_of(output: str) -> str:
    """The end of a run's output, without the spaces at the ends of lines."""
    found = LISTING.search(output)
    if found is None:
        sys.exit("the run has shown no stages")
    return re.sub(r" +$", "", found[0], flags=re.MULTILINE)


if __name__ == "__main__":
    main()
