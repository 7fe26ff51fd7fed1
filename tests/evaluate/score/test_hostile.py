"""Candidates that try to get out, and candidates that try to pass without solving the problem: none does either."""

import json
import os
import socket
import struct
from pathlib import Path

import pytest

from stages.evaluate.score.inside.seccomp import DENIED, this_machine
from stages.evaluate.score.judge import Judge
from stages.evaluate.score.programs import Program
from stages.formats.evaluation.verdicts import Outcome
from tests.evaluate.score.conftest import Run
from tests.small_project import ROOT

ESCAPED = 'def check(candidate):\n    assert candidate() == "escaped"\n'
DOUBLES = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(5) == 10\n"


def function(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"import ctypes, gc, os, signal, socket, subprocess, sys, threading, time\ndef f(*values):\n{lines}\n"


def test_a_candidate_that_does_what_these_tests_take_for_an_escape_would_be_seen(run: Run) -> None:
    assert run(function('return "escaped"'), ESCAPED) == Outcome("passed")


READS = {
    "a file of the project": f"open({str(ROOT / 'params.yaml')!r}).read()",
    "the users of the system": "open('/etc/passwd').read()",
    "processes": "os.listdir('/proc')",
    "its own memory": "open('/proc/self/mem', 'rb')",
    "the kernel's settings": "os.listdir('/sys')",
    "devices": "open('/dev/sda', 'rb')",
}


@pytest.mark.parametrize("attempt", READS.values(), ids=READS)
def test_it_cannot_read(run: Run, attempt: str) -> None:
    assert run(function(f'{attempt}\nreturn "escaped"'), ESCAPED) == Outcome("exception", "FileNotFoundError")


def test_it_cannot_read_a_file_that_anybody_may_read(run: Run, folder: Path) -> None:
    (folder / "secret").write_text("escaped")

    assert run(function(f"return open({str(folder / 'secret')!r}).read()"), ESCAPED).exception == "FileNotFoundError"


def test_it_sees_no_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "escaped")
    body = """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    return "escaped" if os.environ or libc.getenv(b"SECRET") or libc.getenv(b"HOME") else "kept in"
    """

    assert run(function(body.replace("\n    ", "\n")), ESCAPED) == Outcome("assertion")


WRITES = {
    "the root": "open('/written', 'w')",
    "Python's library": "open(os.path.join(os.path.dirname(os.__file__), 'written.py'), 'w')",
    "the sandbox's own code": "open('/code/stages/evaluate/score/inside/check.py', 'a')",
    "devices": "open('/dev/written', 'w')",
}


@pytest.mark.parametrize("attempt", WRITES.values(), ids=WRITES)
def test_it_cannot_write_to(run: Run, attempt: str) -> None:
    assert run(function(f'{attempt}\nreturn "escaped"'), ESCAPED).exception in ("OSError", "PermissionError")


def test_what_it_writes_to_its_tmp_is_gone_for_the_next(run: Run) -> None:
    write = function('open("/tmp/left", "w").write("x")\nreturn "escaped" if os.listdir("/tmp") == ["left"] else ""')
    look = function('return "escaped" if os.listdir("/tmp") == [] and os.getcwd() == "/tmp" else os.listdir("/tmp")')

    assert run(write, ESCAPED) == Outcome("passed")
    assert run(look, ESCAPED) == Outcome("passed")
    assert not Path("/tmp/left").exists()


REFUSED_BY_THE_KERNEL = {
    "a shell": 'subprocess.run("true", shell=True)',
    "a program": "os.execv(sys.executable, [sys.executable])",
    "a fork": "os.fork()",
    "a fork bomb": "while True:\n    os.fork()",
    "a network socket": "socket.create_connection(('127.0.0.1', 22))",
    "a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "to become root": "os.setuid(0)",
    "a changed root": "os.chroot('/tmp')",
    "more memory than allowed": "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (1, 1))\n",
}


@pytest.mark.parametrize("attempt", REFUSED_BY_THE_KERNEL.values(), ids=REFUSED_BY_THE_KERNEL)
def test_it_cannot_have(run: Run, attempt: str) -> None:
    outcome = run(function(f'{attempt}\nreturn "escaped"'), ESCAPED)

    assert outcome.result == "exception"
    assert outcome.exception in ("PermissionError", "ValueError", "OSError")


def test_a_shell_command_does_nothing(run: Run) -> None:
    assert run(function('return "escaped" if os.system("true") == 0 else "kept in"'), ESCAPED) == Outcome("assertion")


def test_it_cannot_reach_a_socket_of_this_machine(run: Run) -> None:
    name = f"\0parrotflow-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        body = f'socket.socket(socket.AF_UNIX).connect({name!r})\nreturn "escaped"'

        assert run(function(body), ESCAPED) == Outcome("exception", "ConnectionRefusedError")


def test_the_denied_system_calls_fail(run: Run) -> None:
    machine = this_machine()
    numbers = {name: row[machine.column] for name, row in DENIED.items() if row[machine.column] is not None}
    body = f"""
libc = ctypes.CDLL(None, use_errno=True)
allowed = []
for name, number in {numbers!r}.items():
    ctypes.set_errno(0)
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:
        allowed.append(name)
return allowed
"""

    assert run(function(body), "def check(candidate):\n    assert candidate() == []\n") == Outcome("passed")


def test_the_numbers_of_the_denied_system_calls_are_the_kernels(run: Run) -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():  # no C headers: that each call fails is tested above
        assert len(DENIED) > 30
        return
    words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_")]
    known = {word[1].removeprefix("__NR_"): int(word[2]) for word in words}

    assert {name: row[0] for name, row in DENIED.items() if name in known} == {
        name: known[name] for name in DENIED if name in known
    }


SIGNALS = {
    "the process of these tests": f"os.kill({os.getpid()}, 0)",
    "everybody": "os.kill(-1, 9)",
    "the server of the sandbox": "os.kill(2, 9)",
    "a neighbour": "os.kill(3, 9)",
}


@pytest.mark.parametrize("attempt", SIGNALS.values(), ids=SIGNALS)
def test_it_cannot_signal(run: Run, attempt: str) -> None:
    assert run(function(f'{attempt}\nreturn "escaped"'), ESCAPED) == Outcome("exception", "ProcessLookupError")


def test_it_has_no_parent_to_reach(run: Run) -> None:
    assert run(function('return "escaped" if os.getppid() else ""'), ESCAPED) == Outcome("assertion")


EXHAUSTS = {
    "memory at once": ("x = bytearray(10**10)", "memory"),
    "memory bit by bit": ("x = [0]\nwhile True:\n    x += x", "memory"),
    "threads": ("while True:\n    threading.Thread(target=time.sleep, args=(60,)).start()", "exception"),
    "a large file": ("open('x', 'wb').write(bytes(10**8))", "exception"),
    "many files": ("for n in range(10**6):\n    open(str(n), 'w').close()", "exception"),
    "the disk": ("for n in range(99):\n    open(str(n), 'wb').write(bytes(10**6))", "exception"),
    "descriptors": ("x = []\nwhile True:\n    x.append(os.dup(1))", "exception"),
    "memory in pipes": ("x = []\nwhile True:\n    x.append(os.pipe())", "exception"),
    "the output": ("while True:\n    print('x' * 10**6)", "timeout"),
    "the processor": ("while True:\n    pass", "timeout"),
    "the processor, deaf to signals": (
        "for n in range(1, 32):\n    n in (9, 19) or signal.signal(n, signal.SIG_IGN)\nwhile True:\n    pass",
        "timeout",
    ),
    "the clock": ("time.sleep(60)", "timeout"),
    "the stack": ("return f()", "exception"),
    "the result's size": ("return 'x' * 20_000_000", "exception"),
    "the result's depth": ("x = []\nfor _ in range(10**5):\n    x = [x]\nreturn x", "exception"),
    "a result without end": ("x = []\nx.append(x)\nreturn x", "exception"),
    "standard input": ("input()", "exception"),
}


@pytest.mark.parametrize(("attempt", "result"), EXHAUSTS.values(), ids=EXHAUSTS)
def test_it_cannot_exhaust(run: Run, attempt: str, result: str) -> None:
    assert run(function(f'{attempt}\nreturn "escaped"'), ESCAPED).result == result


def sends(message: bytes, then: str = "return 0") -> str:
    """A body that looks for the connection to the tests' process and writes to it."""
    return f"""for one in gc.get_objects():
    if isinstance(one, socket.socket):
        one.sendall({message!r})
{then}"""


def framed(value: object) -> bytes:
    """A message as the processes of a sandbox write one."""
    text = json.dumps(value).encode()
    return struct.pack(">I", len(text)) + text


FORGES = {
    "an object that equals everything": ("class E:\n    __eq__ = lambda *_: True\nreturn E()", "assertion"),
    "an int that equals everything": ("class E(int):\n    __eq__ = lambda *_: True\nreturn E(7)", "assertion"),
    "a str that equals everything": ("class E(str):\n    __eq__ = lambda *_: True\nreturn E('7')", "assertion"),
    "a list that equals everything": ("class E(list):\n    __eq__ = lambda *_: True\nreturn E()", "assertion"),
    "a class that claims to be int": ("class E:\n    __class__ = int\n    __eq__ = 1\nreturn E()", "exception"),
    "exit code 0": ("os._exit(0)", "died"),
    "SystemExit": ("sys.exit(0)", "exception"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", "exception"),
    "StopIteration": ("raise StopIteration", "exception"),
    "a kill of itself": ("os.kill(os.getpid(), signal.SIGKILL)\nos.abort()", "died"),
    "a crash": ("ctypes.string_at(0)", "died"),
    "atexit": ("import atexit\natexit.register(print, 'passed')\nsys.exit()", "exception"),
    "writing to every descriptor": (
        """for n in range(1024):
    try:
        os.write(n, b'["passed", ""]')
    except OSError:
        pass
return 0""",
        "refused",
    ),
    "a verdict on the connection": (sends(framed(["passed", ""])), "refused"),
    "calling a type in the tests' process": (
        sends(framed({"do": "call", "with": [{"type": "SystemExit"}, [], {"dict": []}]})),
        "assertion",
    ),
    "another operation in the tests' process": (
        sends(framed({"do": "getattr", "with": [{"type": "int"}, "__subclasses__"]})),
        "refused",
    ),
    "a reference that was never given": (sends(framed({"value": {"reference": {"yours": 5}}})), "refused"),
    "half a message": (sends(b"\0\0\0\x09{", then="os._exit(0)"), "died"),
    "looking for the tests in frames and objects": (
        """frame = sys._getframe()
while frame:
    for value in {**frame.f_globals, **frame.f_locals}.values():
        if isinstance(value, str) and "assert " + "candidate" in value:
            return 2 * values[0]
    frame = frame.f_back
for one in gc.get_objects():
    if isinstance(one, dict) and any("assert " + "candidate" in str(key) for key in one):
        return 2 * values[0]
return 0""",
        "assertion",
    ),
    "changing the checker": (
        """from stages.evaluate.score.inside import check, server
check.check = lambda *_: ("passed", "")
server.run = server.supervise = check.check
os._exit = lambda code: None
return 0""",
        "assertion",
    ),
    "changing the builtins": (
        """import builtins
builtins.AssertionError = builtins.Exception = KeyError
builtins.isinstance = builtins.all = builtins.abs = lambda *_: True
builtins.__import__ = None
return 0""",
        "died",
    ),
    "a traced check": ("sys.settrace(lambda *_: None)\nthreading.setprofile(print)\nreturn 0", "assertion"),
}


@pytest.mark.parametrize(("attempt", "result"), FORGES.values(), ids=FORGES)
def test_it_does_not_pass_by(run: Run, attempt: str, result: str) -> None:
    assert run(function(attempt), DOUBLES).result == result


AT_IMPORT = {
    "exit code 0": ("import os; os._exit(0)", "died"),
    "SystemExit": ("raise SystemExit(0)", "exception"),
    "its own check": ("def check(candidate): pass\ndef f(x): pass", "assertion"),
    "its own result": ("import sys\nsys.modules['builtins'].print = None\nprint('passed')", "exception"),
    "no function": ("g = 1", "exception"),
    "a number as function": ("f = 4", "exception"),
    "no Python": ("def f(x) return", "syntax"),
    "half a program": ("f = (", "syntax"),
}


@pytest.mark.parametrize(("code", "result"), AT_IMPORT.values(), ids=AT_IMPORT)
def test_its_module_does_not_pass_by(run: Run, code: str, result: str) -> None:
    assert run(code, DOUBLES).result == result


def test_an_exception_does_not_end_a_loop_of_assertions_early(run: Run) -> None:
    test = (
        "def check(candidate):\n    for got, want in zip(map(candidate, [1, 2]), [2, 4]):\n        assert got == want\n"
    )

    assert run("def f(x): raise StopIteration", test) == Outcome("exception", "CandidateError")


def test_a_test_that_expects_an_exception_does_not_take_a_dead_process_for_one(run: Run) -> None:
    test = "def check(candidate):\n    try:\n        candidate(1)\n    except:\n        return\n    assert False\n"

    assert run("import os\ndef f(x): os._exit(0)", test) == Outcome("died")
    assert run("def f(x): raise ValueError", test) == Outcome("passed")


def test_names_of_python_in_the_tests_are_never_the_candidates(run: Run) -> None:
    code = "import builtins\nabs = sorted = lambda *_: 0\nbuiltins.abs = builtins.sorted = abs\ndef f(x): return 9"

    assert run(code, "def check(candidate):\n    assert abs(candidate(1) - 1) < 1\n") == Outcome("assertion")


def test_a_library_of_the_tests_is_never_the_candidates(judge: Judge) -> None:
    forged = "class math:\n    fabs = lambda x: 0\ndef f(x): return 9"

    by_name = judge.judge(Program(forged, "", "assert math.fabs(f(1) - 1) < 1", ""))
    by_check = judge.judge(Program(forged, "", "def check(f):\n    assert math.fabs(f(1) - 1) < 1", "f"))

    assert by_name == by_check == Outcome("exception", "NameError")


def test_the_problems_own_functions_are_never_the_candidates(run: Run) -> None:
    prompt = 'def poly(x):\n    """The square."""\n    return x * x\n\ndef f(y):\n    """The root."""\n'
    test = "def check(candidate):\n    assert poly(candidate(9)) == 9\n"
    forged = f"{prompt}    return 1\ndef poly(x):\n    return 9\n"

    assert run(forged, test, prompt) == Outcome("assertion")
    assert run(f"{prompt}    return 3\n", test, prompt) == Outcome("passed")


def test_after_all_of_this_the_same_sandbox_judges_right(run: Run) -> None:
    assert run(function("return 2 * values[0]"), DOUBLES) == Outcome("passed")
    assert run(function("return 3 * values[0]"), DOUBLES) == Outcome("assertion")
