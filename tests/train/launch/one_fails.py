"""A worker for the launcher: the first process fails on purpose, the others wait for it as in an exchange of NCCL's."""

import os
import time

from stages.runtime.entry import EXIT_USER_ERROR
from stages.runtime.launch.supervision import follow_command, leave

if __name__ == "__main__":
    follow_command()
    if os.environ["RANK"] == "0":
        leave(EXIT_USER_ERROR)
    time.sleep(600)
