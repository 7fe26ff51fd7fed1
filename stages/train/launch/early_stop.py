"""SIGTERM while the command still imports what it needs ends it with the code for that, not by the signal itself.

Import this first. Nothing has begun by then; `stages.train.launch.launcher` takes over before anything does.
"""

import os
import signal
import sys

from stages.runtime.entry import EXIT_TERMINATED

if getattr(sys.modules["__main__"].__spec__, "name", "") == "stages.train.__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(EXIT_TERMINATED))
