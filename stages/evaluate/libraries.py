"""Settings that libraries read from the environment on import: import this module before them.

Waiting threads of OpenMP, which torch loads, spin for about 0.1 ms and then sleep, as in `launch.environment`. Threads
that keep spinning are as fast on idle cores, but slow down on busy ones: the same evaluation, four times each on 2 busy
cores, took 10 to 113 s with OpenMP's defaults and 10 to 26 s with these settings. The user's settings are kept.
"""

import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

os.environ["HF_EVALUATE_OFFLINE"] = "1"  # `evaluate` would download a metric's script and run it
os.environ["DISABLE_MULTIPROC"] = "1"  # lm-eval's bootstrap would fork this process, which has threads
os.environ.pop("HF_ALLOW_CODE_EVAL", None)  # generated code runs only in the sandbox of the stage `score`
os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")  # `datasets` would report each load, even of a local file
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

BARS = sys.stderr.isatty()
"""True if progress bars are drawn; they would fill a log."""

if not BARS:
    os.environ["TQDM_DISABLE"] = "1"  # tqdm reads it when it is imported
