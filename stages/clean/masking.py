"""Masks what must not be learnt: e-mail addresses, public IP addresses, credentials.

The patterns of credentials are those of detect-secrets; a value is replaced, the text around it stays.
"""

import inspect
import ipaddress
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from stages.clean.params import Masks

EMAIL = re.compile(r"(?<![\w.+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![\w-])")
# Global unicast addresses of IPv6 begin with 2 or 3 (RFC 4291); three colons tell them from slices.
IP_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[23][0-9a-fA-F]{3}:(?:[0-9a-fA-F]{0,4}:){2,6}[0-9a-fA-F]{0,4})(?![\w:]|\.\d)"
)
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----")

RESERVED = ("example.com", "example.org", "example.net", ".example", ".test", ".invalid")
"""Domains for documentation (RFC 2606): nobody's address."""

DETECTORS = (
    "aws", "azure_storage_key", "discord", "github_token", "gitlab_token", "jwt", "mailchimp", "npm", "openai",
    "pypi_token", "sendgrid", "slack", "square_oauth", "stripe", "telegram_token", "twilio",
)  # fmt: skip

PLACEHOLDERS = {"emails": "<EMAIL>", "ip_addresses": "<IP_ADDRESS>", "keys": "<KEY>"}

SHORTEST_VALUE = 16
"""A shorter group of a pattern is a prefix, not a credential."""


@dataclass(frozen=True, slots=True)
class Masked:
    """A text without what was masked, and how often each kind was found."""

    text: str
    found: Counter[str]


def mask(text: str, masks: Masks) -> Masked:
    """The text with `<EMAIL>`, `<IP_ADDRESS>` and `<KEY>` in place of what the parameters name."""
    found: Counter[str] = Counter()
    if masks.keys:
        for pattern in key_patterns():
            text, count = pattern.subn(_without_key, text)
            found["keys"] += count
    if masks.emails and "@" in text:
        text = EMAIL.sub(lambda match: _replaced(match, not match[0].endswith(RESERVED), "emails", found), text)
    if masks.ip_addresses:
        text = IP_ADDRESS.sub(lambda match: _replaced(match, _is_public(match[0]), "ip_addresses", found), text)
    return Masked(text, found)


def _replaced(match: re.Match[str], real: bool, kind: str, found: Counter[str]) -> str:
    found[kind] += real
    return PLACEHOLDERS[kind] if real else match[0]


def _without_key(match: re.Match[str]) -> str:
    """A pattern's group is the value, or only its prefix (`ghp`): then all of the match is the value."""
    value = max((group for group in match.groups() if group), key=len, default="")
    return match[0].replace(value, PLACEHOLDERS["keys"]) if len(value) >= SHORTEST_VALUE else PLACEHOLDERS["keys"]


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


@cache
def key_patterns() -> tuple[re.Pattern[str], ...]:
    """Private keys, and credentials by their form; detectors by entropy or by a variable's name hit ordinary code."""
    modules = [import_module(f"detect_secrets.plugins.{name}") for name in DETECTORS]
    detectors = [
        member
        for module in modules
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__ and hasattr(member, "denylist")
    ]
    return (PRIVATE_KEY, *(pattern for detector in detectors for pattern in detector.denylist))
