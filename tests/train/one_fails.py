"""A worker for the launcher: the first process fails on purpose, while the others wait for it.

With `WAITING=gloo` in an exchange of gloo's, which notices that a process has gone; else as in one of NCCL's, which
does not.
"""

import os
import time

from accelerate import Accelerator

from stages.runtime.entry import EXIT_USER_ERROR
from stages.runtime.supervision import follow_command, leave

if __name__ == "__main__":
    follow_command()
    accelerator = Accelerator() if os.environ.get("WAITING") == "gloo" else None
    if os.environ["RANK"] == "0":
        leave(EXIT_USER_ERROR)
    if accelerator is not None:
        accelerator.wait_for_everyone()
    time.sleep(600)
