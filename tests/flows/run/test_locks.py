import subprocess
import sys
import threading
import time
from pathlib import Path

from flows.run.locks import run_lock

HOLDER = """
import sys
from flows.run.locks import run_lock
with run_lock("nightly"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_waits_says_for_whom(tmp_path: Path) -> None:
    said: list[str] = []

    def second() -> None:
        with run_lock("on-demand", wait=True, folder=tmp_path, say=said.append):
            said.append("entered")

    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        waiting = threading.Thread(target=second)
        waiting.start()
        while not said:
            time.sleep(0.05)
        holder.stdin.close()
    waiting.join()

    assert said[0].startswith(f"the run nightly (process {holder.pid}, since ")
    assert said[0].endswith("is using this folder; waiting for its end ...")
    assert said[1:] == ["entered"]
