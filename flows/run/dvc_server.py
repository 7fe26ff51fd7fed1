"""DVC for the stages of a run: one process imports it and forks itself for each stage.

Importing DVC takes 0.4 s, twice what it then does for a trivial stage; here it passes while the run imports Prefect. A
process with several threads, as Prefect's is, must not fork, so the server is one of its own. Each stage gets a process
with a session of its own, so that everything that it starts can be ended together.

A request is a line of JSON on a socket, with descriptors: where the stage's command writes, where DVC itself writes,
and a pipe that is at its end once the run has ended. A stage ends with its run, however the run ends: its command gets
SIGTERM and saves, and DVC, which outlives the command, releases what it has locked.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict

# Imported before the fork, so that no stage has to.
from dvc.cli import main as dvc_main

from flows.dvc_repo.cache import check_results, drop_damaged
from flows.dvc_repo.internals import (
    commands_get,
    compare_inputs,
    dvc_prints_to,
    lacks_outputs,
    lock_file_written_whole,
    poll_lock_every,
    verify_downloads,
)
from flows.dvc_repo.lock_file import place_new
from flows.run.process import END, GRACE_SECONDS, StageProcess, StageRequest
from stages.runtime.entry import UserError

LONGEST_REQUEST = 1 << 20

LOCK_POLL_SECONDS = 0.05


class DvcServer:
    """The process that forks; it ends when it is closed, or when the run that started it has ended."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._alive, self._lives = os.pipe()
        """The second one is open in this process alone."""
        self._lock = threading.Lock()
        with theirs:
            command = [sys.executable, "-m", "flows.run.dvc_server"]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), start_new_session=True)

    def start(self, request: StageRequest) -> StageProcess:
        """Have a stage brought up to date in a new process. Raises UserError if the server is dead."""
        output, to_output = os.pipe()
        messages, to_messages = os.pipe()
        try:
            with self._lock:
                line = json.dumps(asdict(request)).encode() + b"\n"
                socket.send_fds(self._socket, [line], [to_output, to_messages, self._alive])
                pid = int(self._socket.recv(32))
        except (ConnectionError, ValueError):
            os.close(output)
            os.close(messages)
            raise UserError("the process that starts the stages was killed: run the same command again") from None
        finally:
            os.close(to_output)
            os.close(to_messages)
        if pid < 0:
            os.close(output)
            os.close(messages)
            raise UserError(
                f"no process can be started for {request.stage} ({os.strerror(-pid)}): free memory, or raise the limit "
                "of processes (`ulimit -u`), and run the same command again"
            )
        return StageProcess(pid, output, messages)

    def close(self) -> None:
        """Let it end."""
        self._socket.close()
        self._process.wait()
        os.close(self._alive)
        os.close(self._lives)


def serve(requests: socket.socket) -> None:
    """Fork a process for each request until the other end is closed."""
    # The kernel then reaps the stages' processes by itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    while True:
        line, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 3)
        if not line:
            return
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 0)
        if pid == 0:
            requests.close()
            _reproduce_and_exit(StageRequest(**json.loads(line)), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.sendall(f"{pid}".encode())


def _reproduce_and_exit(request: StageRequest, output: int, messages: int, alive: int) -> None:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A handler, since programs would inherit that a signal is ignored.
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(target=_end_with_the_run, args=(alive,), daemon=True).start()
        _redirect(messages, 1, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
        for name, value in request.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if request.folder:
            os.chdir(request.folder)
        # DVC is patched for good: this process is for one stage.
        dvc_prints_to(sys.stdout)
        commands_get(output)
        compare_inputs()
        check_results()
        poll_lock_every(LOCK_POLL_SECONDS)
        verify_downloads()
        with lock_file_written_whole(place_new):
            code = reproduce_stage(request)
        took = resource.getrusage(resource.RUSAGE_CHILDREN)  # `os.times` counts in hundredths: none of a quick stage
        print(f"{END}{code} {took.ru_utime + took.ru_stime:.6f}", flush=True)
    finally:
        os._exit(code)


def _end_with_the_run(alive: int) -> None:
    os.read(alive, 1)  # nothing is ever written
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


def reproduce_stage(request: StageRequest) -> int:
    """`dvc repro --single-item STAGE`; its exit code."""
    if request.check_cache and (damaged := drop_damaged(request.stage)):
        print(f"WARNING: damaged in DVC's cache, dropped there: {', '.join(damaged)}")
    # Other stages may work in the same repository, so DVC waits for its lock.
    arguments = ["--wait-for-lock", "repro", "--single-item", request.stage, *(["--force"] if request.force else [])]
    code = int(dvc_main([*arguments, *(["--pull"] if request.pull else [])]))
    if code == 0 and request.pull and lacks_outputs(request.stage):
        # With --pull DVC takes a stage for up to date whose outputs that are not cached are missing.
        code = int(dvc_main(arguments))
    return code


def _redirect(target: int, *descriptors: int) -> None:
    for descriptor in descriptors:
        os.dup2(target, descriptor)
    if target not in descriptors:
        os.close(target)


if __name__ == "__main__":
    with socket.socket(fileno=os.dup(0)) as own:
        _redirect(os.open(os.devnull, os.O_RDWR), 0, 1, 2)
        serve(own)
    os._exit(0)  # the run waits for this process, and an orderly end with DVC imported takes 0.25 s
