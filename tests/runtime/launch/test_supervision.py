"""How a worker ends, and what the command learns of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from stages.runtime.launch.supervision import OUTCOME, VARIABLE
from tests.train.small_run import environment

LEAVING = """
import atexit, sys, threading, time
from stages.runtime.launch.supervision import leave

class Freed:
    def __del__(self):
        print("freed")

def write():
    time.sleep(0.5)
    print("written")

freed = Freed()
atexit.register(print, "atexit")
threading.Thread(target=write).start()
leave(3)
"""


@pytest.mark.parametrize("has_command", [True, False])
def test_a_worker_that_leaves_completes_its_threads_and_exit_functions_and_frees_nothing(
    tmp_path: Path, has_command: bool
) -> None:
    """Python's own ending would free the process groups, which can wait for ever."""
    variables = environment(**({VARIABLE: str(tmp_path)} if has_command else {}))
    done = subprocess.run([sys.executable, "-c", LEAVING], check=False, env=variables, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["written", "atexit"], "")
    assert done.returncode == (0 if has_command else 3)
    if has_command:
        assert (tmp_path / OUTCOME).read_text() == "3"
