"""Install a file of pinned requirements into this Python's environment: by uv, or by pip if uv cannot.

uv takes a fifth of pip's time, but does not read pip's configuration, so what that says of indexes, constraints and
certificates is passed on. `make` calls it; it imports the standard library only.
"""

import argparse
import ast
import os
import subprocess
import sys

UV = "uv==0.13.9"
PIP = [sys.executable, "-m", "pip"]

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


def configured(listed: str) -> dict[str, str]:
    """Read the output of `pip config list`: lines such as `global.find-links='/wheels'`."""
    sections: dict[str, dict[str, str]] = {}
    for line in listed.splitlines():
        key, separator, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if separator:
            sections.setdefault(section, {})[name] = str(ast.literal_eval(value))
    return {name: value for section in COMMANDS for name, value in sections.get(section, {}).items()}


def uv_options(settings: dict[str, str]) -> list[str]:
    """Options that make uv look where pip looks, and take the best version of all indexes as pip does."""
    given = [f"{option}={word}" for name, option in OPTIONS.items() for word in settings.get(name, "").split()]
    no_index = ["--no-index"] if settings.get("no-index", "").lower() in ("1", "true", "yes", "on") else []
    return [*given, *no_index, "--index-strategy", "unsafe-best-match"]


def main() -> int:
    """Install; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("requirements")
    parser.add_argument("--no-deps", action="store_true")
    asked = parser.parse_args()
    what = ["-r", asked.requirements, *(["--no-deps"] if asked.no_deps else [])]
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    settings = configured(listed)
    environment = os.environ | {"UV_LINK_MODE": os.environ.get("UV_LINK_MODE", "copy")}
    if "cert" in settings:
        environment.setdefault("SSL_CERT_FILE", settings["cert"])
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    if subprocess.run([*PIP, "install", *quiet, "--only-binary", "uv", UV], check=False).returncode == 0:
        uv = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
        if subprocess.run([*uv, *uv_options(settings), *what], env=environment, check=False).returncode == 0:
            return 0
    print("uv could not install this; pip does, which takes longer", flush=True)
    return subprocess.run([*PIP, "install", *quiet, *what], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
