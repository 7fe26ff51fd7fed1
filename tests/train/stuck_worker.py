"""A worker for the launcher: the first process fails on purpose while the others wait for it, or all wait for ever.

`WAITING=gloo`: in an exchange of gloo's, which notices that a process has gone. `nccl`: as in one of NCCL's, which does
not. `start`: before the first step, for processes that never come.
"""

import os
import time
from pathlib import Path

from accelerate import Accelerator

from stages.runtime.errors import EXIT_USER_ERROR
from stages.runtime.supervision import follow_command, leave
from stages.train.loop import StopSignal

if __name__ == "__main__":
    follow_command()
    waiting = os.environ["WAITING"]
    stop = StopSignal() if waiting == "start" else None
    accelerator = Accelerator() if waiting == "gloo" else None
    if stop is None and os.environ["RANK"] == "0":
        leave(EXIT_USER_ERROR)
    if accelerator is not None:
        accelerator.wait_for_everyone()
    Path("waiting").touch()
    time.sleep(600)
