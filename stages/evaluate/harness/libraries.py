"""How lm-eval and its libraries behave, where they read it from the environment: import this before them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO

os.environ["HF_EVALUATE_OFFLINE"] = "1"  # `evaluate` would download a metric's script and run it
os.environ["DISABLE_MULTIPROC"] = "1"  # lm-eval's bootstrap would fork this process, which has threads
os.environ.pop("HF_ALLOW_CODE_EVAL", None)  # generated code runs in the sandbox of the stage `score` alone
os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")  # `datasets` would report each load, also of a local file
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


@contextmanager
def bars_in_a_terminal_only() -> Iterator[None]:
    """lm-eval draws a bar for each batch; a log would hold each of their states."""
    if sys.stderr.isatty():
        yield
        return
    with redirect_stderr(StringIO()):
        yield
