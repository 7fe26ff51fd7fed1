"""Stages whose Hub client, the real one, makes all its attempts but hardly waits between them."""

import sys

PROGRAM = """\
import runpy
from huggingface_hub.utils import _http
_http.http_backoff.__kwdefaults__.update(base_wait_time=0.01, max_wait_time=0.01)  # from 1 and 8 seconds
{before}
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def with_short_waits(module: str, before: str = "") -> list[str]:
    """The command `python -m module` whose client repeats a failed call at once; `before` is code to run first."""
    return [sys.executable, "-c", PROGRAM.format(module=module, before=before)]
