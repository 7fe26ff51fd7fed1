"""Settings that lm-eval and its libraries read from the environment: import this module before them."""

import os
import sys

os.environ["HF_EVALUATE_OFFLINE"] = "1"  # `evaluate` would download a metric's script and run it
os.environ["DISABLE_MULTIPROC"] = "1"  # lm-eval's bootstrap would fork this process, which has threads
os.environ.pop("HF_ALLOW_CODE_EVAL", None)  # generated code runs in the sandbox of the stage `score` alone
os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")  # `datasets` would report each load, also of a local file
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

BARS = sys.stderr.isatty()
"""Whether progress bars are drawn: they would fill a log."""

if not BARS:
    os.environ["TQDM_DISABLE"] = "1"  # tqdm reads it when it is imported
