"""The command line, which runs, versions and compares stages."""

import signal
import sys

is_command = sys.argv[0].endswith("parrotflow") or "flows.cli" in sys.orig_argv
if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports ends the command without a traceback; later `run_stage` handles it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
