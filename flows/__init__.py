"""The command line, and what chains, versions and compares the stages' runs."""

import signal
import sys

is_command = sys.argv[0].endswith("parrotflow") or "flows.cli" in sys.orig_argv
if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # A Ctrl-C during the imports ends the command, without a traceback. From `run_stage` on it is answered.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
