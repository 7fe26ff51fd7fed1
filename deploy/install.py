"""Install a lock into this Python's environment, only files whose hashes it lists: by uv, or by pip if uv cannot.

uv takes a fifth of pip's time, but does not read pip's configuration, so what that says of indexes, constraints and
certificates is passed on. `make` calls it; it imports the standard library only.
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

ROOT = Path(__file__).parents[1]

RUN_LOCK, GPU_LOCK, UV_LOCK = ROOT / "requirements.lock", ROOT / "requirements-gpu.lock", ROOT / "deploy/uv.txt"

PIP = [sys.executable, "-m", "pip"]
QUIET = ["--quiet", "--disable-pip-version-check", "--no-compile"]

OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraints",
    "trusted-host": "--allow-insecure-host",
}
"""The name in pip's configuration, and uv's option for each of its words."""

COMMANDS = ("global", "install", ":env:")
"""The sections that apply to `pip install`; a later one replaces what an earlier one says."""

HASH = "--hash=sha256:"

BUILD_HASHES = ["--preview-features=build-dependency-hashes", "--require-build-hashes"]

BUILDER = "setuptools=="
"""What packages without a wheel are built with."""

MISMATCH = 3
"""The exit code if a file has another hash than those in the lock."""

PIN = re.compile(r"(?m)^([\w.-]+)==([^\s;\\]+)")


def configured(listed: str) -> dict[str, str]:
    """Read the output of `pip config list`: lines such as `global.find-links='/wheels'`."""
    sections: dict[str, dict[str, str]] = {}
    for line in listed.splitlines():
        key, separator, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if separator:
            sections.setdefault(section, {})[name] = str(ast.literal_eval(value))
    return {name: value for section in COMMANDS for name, value in sections.get(section, {}).items()}


def pip_settings() -> dict[str, str]:
    """What pip is configured with."""
    return configured(subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout)


def uv_options(settings: dict[str, str]) -> list[str]:
    """Options that make uv look where pip looks, and take the best version of all indexes as pip does."""
    given = [f"{option}={word}" for name, option in OPTIONS.items() for word in settings.get(name, "").split()]
    no_index = ["--no-index"] if settings.get("no-index", "").lower() in ("1", "true", "yes", "on") else []
    return [*given, *no_index, "--index-strategy", "unsafe-best-match"]


def uv(*arguments: str, given: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `uv pip` on requirements from standard input; print what it says.

    Without uv's configuration: with hashes it refuses constraints without a hash, such as those in pyproject.toml.
    """
    environment = os.environ | {"UV_LINK_MODE": os.environ.get("UV_LINK_MODE", "copy")}
    if "cert" in settings:
        environment.setdefault("SSL_CERT_FILE", settings["cert"])
    command = [sys.executable, "-m", "uv", "--no-config", "pip", *arguments, "--python", sys.executable]
    done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=False)
    print(done.stderr, end="", flush=True)
    return done


def normalized(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def with_builds(lock: str, resolved: str) -> str:
    """Write the build that uv has chosen into the lock: to uv, the hashes of `torch==2` are not those of `2+cpu`."""
    chosen = {normalized(name): version for name, version in PIN.findall(resolved)}
    return PIN.sub(
        lambda pin: f"{pin[1]}=={build}" if "+" in (build := chosen.get(normalized(pin[1]), "")) else pin[0], lock
    )


def by_uv(path: Path) -> int:
    """Install exactly what the lock names. Returns the exit code."""
    lock, settings = path.read_text(encoding="utf-8"), pip_settings()
    hashed: list[str] = []
    if HASH in lock:
        settings.pop("constraint", None)  # uv refuses it, and the lock gives all versions
        builders = path if BUILDER in lock else RUN_LOCK
        hashed = ["--require-hashes", *BUILD_HASHES, f"--build-constraints={builders}"]
    options = uv_options(settings)
    pins = "".join(f"{pin[0]}\n" for pin in PIN.finditer(lock))
    plain = ["compile", "-q", "--no-deps", "--no-header", "--no-annotate"]
    done = uv(*plain, *options, "-", given=pins, settings=settings)
    if done.returncode == 0:
        chosen = with_builds(lock, done.stdout)
        done = uv("install", "--no-deps", *hashed, *options, "-r", "-", given=chosen, settings=settings)
    return MISMATCH if "Hash mismatch" in done.stderr else done.returncode


def by_pip(path: Path, *more: str) -> int:
    """As `by_uv`. The builder of packages without a wheel comes first: pip checks no hashes of what it builds with."""
    command, lock = [*PIP, "install", *QUIET, "--no-deps", *more], path.read_text(encoding="utf-8")
    if HASH in lock:
        command += ["--require-hashes", "--no-build-isolation"]
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as first:
            first.writelines(line for line in lock.splitlines(keepends=True) if line.startswith(BUILDER))
            first.flush()
            if (code := subprocess.run([*command, "-r", first.name], check=False).returncode) != 0:
                return code
    return subprocess.run([*command, "-r", str(path)], check=False).returncode


def install(path: Path, *, have_uv: bool) -> int:
    """As `by_uv`, by pip if uv is not there or fails for another reason than a file with a wrong hash."""
    code = by_uv(path) if have_uv else 1
    if code in (0, MISMATCH):
        return code
    print("uv could not install this; pip does, which takes longer", flush=True)
    return by_pip(path)


def wants_gpu_libraries() -> bool:
    """Whether the installed torch is a build that depends on libraries of requirements-gpu.lock."""
    try:
        needed = {normalized(re.split(r"[^\w.-]", entry)[0]) for entry in requires("torch") or ()}
    except PackageNotFoundError:
        return False
    locked = PIN.findall(GPU_LOCK.read_text(encoding="utf-8")) if GPU_LOCK.is_file() else []
    return not needed.isdisjoint(normalized(name) for name, _ in locked)


def main() -> int:
    """Install; returns the exit code."""
    (asked,) = sys.argv[1:]
    have_uv = by_pip(UV_LOCK, "--only-binary=uv") == 0
    return install(Path(asked), have_uv=have_uv) or (install(GPU_LOCK, have_uv=have_uv) if wants_gpu_libraries() else 0)


if __name__ == "__main__":
    sys.exit(main())
