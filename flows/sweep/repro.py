"""The process in which a job's stages run: `python repro.py [--pull] TARGET...`, with a pipe as its standard input.

It ends with the sweep, however the sweep ends: the pipe is then closed, and the stage's program gets SIGTERM and saves.
It is started as a file, so that a clone's own `flows` is not taken for the project's.
"""

import os
import signal
import sys
import threading
import time

GRACE_SECONDS = 35.0
"""Between TERM and KILL: torch's launcher gives its workers 30 s."""


def end_with_the_sweep(sweep: int) -> None:
    """Wait for the end of the pipe, then end this process with all that it has started."""
    os.read(sweep, 1)  # nothing is ever written
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


def main(targets: list[str], *, pull: bool) -> int:
    """`dvc repro`; its exit code."""
    from dvc.cli import main as dvc_main

    arguments = ["--wait-for-lock", "repro", *targets]
    if pull and (code := int(dvc_main([*arguments, "--pull"]))):
        return code
    # Once more: with --pull DVC takes a stage for up to date whose outputs that are not cached are missing.
    return int(dvc_main(arguments))


if __name__ == "__main__":
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # DVC outlives its program and releases its locks. A handler, because programs would inherit an ignored signal.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=end_with_the_sweep, args=(pipe,), daemon=True).start()
    exit_code = main([word for word in sys.argv[1:] if word != "--pull"], pull="--pull" in sys.argv)
    sys.stdout.flush()
    os._exit(exit_code)
