import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flows.run.locks import run_lock
from stages.runtime.errors import UserError
from tests.waiting import wait_until

HOLDER = """
import sys
from flows.run.locks import run_lock
with run_lock("nightly"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_with_the_firsts_name_and_one_that_waits_says_it(tmp_path: Path) -> None:
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
        refused = (
            rf"^the run nightly \(process {holder.pid}, since 20.* is using this folder; wait for it \(--wait\), or"
        )
        with pytest.raises(UserError, match=refused), run_lock("nightly", folder=tmp_path):
            pass
        waiting = threading.Thread(target=second)
        waiting.start()
        wait_until(lambda: said)
        holder.stdin.close()
    waiting.join()

    assert said[0].startswith(f"the run nightly (process {holder.pid}, since ")
    assert said[0].endswith("is using this folder; waiting for it to finish ...")
    assert said[1:] == ["entered"]
