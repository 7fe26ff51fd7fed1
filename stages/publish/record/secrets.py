"""Looks for credentials in what is about to be published."""

import os
import re
from functools import cache
from itertools import chain
from typing import Any

from stages.runtime.credentials import credentials

NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
"""Environment variables whose values are credentials."""

SHORTEST = 12
"""A shorter value of such a variable (`true`, `password`) may stand in any text."""

BY_ENTROPY_OR_NAME = {
    "Base64HighEntropyString",
    "HexHighEntropyString",
    "KeywordDetector",
    "IPPublicDetector",
    "BasicAuthDetector",
}
"""Detectors that hit hashes, test data and ordinary code. Passwords in URLs are found by `in_urls`."""

ALLOWED = "pragma: allowlist secret"
"""A line with this comment is not looked at: detect-secrets' own mark."""

HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")
"""Of the Hugging Face Hub, for which detect-secrets has no detector."""


OF_A_CONFIGURATION = re.compile(r"(?im)^\s*\w*(?:token|secret|password|key)\w*\s*=\s*\S")
"""In DVC's configuration: a credential by its name."""


def find_secret(content: bytes, *, in_urls: bool = False, by_name: bool = False) -> str | None:
    """What kind of credential a file holds, and in which line; None where it holds none that is known by its form.

    Forms are those of detect-secrets, and the values of this process's own secret variables. `in_urls` also finds
    passwords and signatures in URLs, which in code are mostly examples; `by_name` those of a configuration, by their
    names.
    """
    text = content.decode("utf-8", "replace")
    for name, value in os.environ.items():
        if NAMES.search(name) and len(value) >= SHORTEST and value in text:
            return f"the value of {name}, line {_line(text, text.index(value))}"
    by_names = (("Credential in a configuration", OF_A_CONFIGURATION),) if by_name else ()
    by_form = ((match.start(), kind) for kind, form in (*by_names, *forms()) for match in form.finditer(text))
    by_url = ((position, f"a URL with {kind}") for position, kind in credentials(text)) if in_urls else ()
    for position, kind in chain(by_form, by_url):
        line = _line(text, position)
        if ALLOWED not in text.splitlines()[line - 1]:
            return f"{kind}, line {line}"
    return None


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


@cache
def forms() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Kind of credential -> its pattern."""
    # Half a second of imports, needed only where something is published for the first time.
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    detectors: list[Any] = list(get_mapping_from_secret_type_to_class().values())
    detectors = [detector for detector in detectors if detector.__name__ not in BY_ENTROPY_OR_NAME]
    found = [(str(detector.secret_type), pattern) for detector in detectors for pattern in detector.denylist]
    return (("Hugging Face token", HUB_TOKEN), *found)
