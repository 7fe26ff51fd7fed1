"""How a worker ends, and what the command learns of it."""

import subprocess
import sys

import pytest

from stages.runtime.supervision import VARIABLE, Supervision
from tests.train.small_run import environment

LEAVING = """
import atexit, sys, threading, time
from stages.runtime.supervision import follow_command, leave

class Freed:
    def __del__(self):
        print("freed")

def write():
    time.sleep(0.5)
    print("written")

follow_command()
freed = Freed()
atexit.register(print, "atexit")
threading.Thread(target=write).start()
leave(3)
"""


@pytest.mark.parametrize("has_command", [True, False])
def test_a_worker_that_leaves_completes_its_threads_and_exit_functions_and_frees_nothing(has_command: bool) -> None:
    """Python's own ending would free the process groups, which can wait for ever."""
    command = Supervision()
    variables = environment(**({VARIABLE: str(command.folder)} if has_command else {}))
    done = subprocess.run([sys.executable, "-c", LEAVING], check=False, env=variables, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["written", "atexit"], "")
    assert done.returncode == (0 if has_command else 3)
    if has_command:
        assert command.outcome() == 3
    command.close()


WORKER = """
import sys, time
from stages.runtime.supervision import follow_command, leave

follow_command()
print("started", flush=True)
sys.stdin.readline()
sys.exit(1) if sys.argv[1] == "dies" else leave(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        (["0", "0"], 0),
        (["2", "0"], 2),
        (["0", "2"], 2),
        (["143", "75"], 143),
        (["75", "143"], 75),
        (["0", "dies"], None),
        (["dies", "0"], None),
        (["dies", "2"], 2),
    ],
)
def test_the_outcome_of_two_workers_is_that_of_the_first_failure_and_0_only_if_both_ended_well(
    ends: list[str], outcome: int | None
) -> None:
    command = Supervision()
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, end],
            env=environment(**{VARIABLE: str(command.folder)}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for end in ends
    ]
    for process in begun:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
    assert command.outcome() is None
    for process in begun:
        process.communicate("end\n")
    assert command.outcome() == outcome
    command.close()
