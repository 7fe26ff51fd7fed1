"""A worker that waits for other processes before its first step, and waits for ever."""

import time
from pathlib import Path

from stages.runtime.supervision import follow_command
from stages.train.loop import StopSignal

if __name__ == "__main__":
    follow_command()
    stop = StopSignal()
    Path("waiting").touch()
    time.sleep(3600)
