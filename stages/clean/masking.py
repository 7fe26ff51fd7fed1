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

import regex

from stages.clean.params import Masks

EMAIL = re.compile(r"(?<![\w.+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![\w-])")
# A colon may be on either side of an IPv4 address: a host before it, a port after it. What follows `oid:` (RFC 3061) or
# the epoch of a Debian version (`1:2.3.4.5`) is none, nor a heading with a colon (`3.8.2.4: `).
# Global unicast addresses of IPv6 begin with 2 or 3 (RFC 4291); three colons tell them from slices.
IP_ADDRESS = re.compile(
    r"(?=\d)(?<![\w.])(?:(?<![oO][iI][dD]:)(?<![^\w.]\d:)\d{1,3}(?:\.\d{1,3}){3}(?!:\s)"
    r"|(?<!:)[23][0-9a-fA-F]{3}:(?:[0-9a-fA-F]{0,4}:){2,6}[0-9a-fA-F]{0,4}(?!:))(?!\w|\.\d)"
)
PRIVATE_KEY_LINE = re.compile(r"-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")

RESERVED = (".example.com", ".example.org", ".example.net", ".example", ".test", ".invalid")
"""Domains for documentation (RFC 2606): no real addresses."""

DETECTORS = (
    "azure_storage_key", "discord", "github_token", "gitlab_token", "mailchimp", "pypi_token", "sendgrid", "slack",
    "square_oauth", "stripe", "telegram_token", "twilio",
)  # fmt: skip

LINEAR = (
    re.compile(r"(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[0-9A-Z]{16}"),  # AWS, the id of a key
    # AWS, the key: a quoted value, then the check that `aws` and `key` or the like are before it.
    regex.compile(
        r"""['"]([0-9a-zA-Z/+]{40})['"](?<=aws.{0,20}(?:key|pwd|pw|password|pass|token).{0,20}['"][0-9a-zA-Z/+]{40}['"])""",
        regex.IGNORECASE,
    ),
    re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]+=*\.[A-Za-z0-9_-]+=*(?:\.[A-Za-z0-9_-]+=*)?"),  # JSON web token
    re.compile(r"/:_authToken=\s*(npm_\S+|[A-Fa-f0-9-]{36})"),
    re.compile(r"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]*[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}"),  # OpenAI
)
"""In place of detect-secrets' patterns for the same, which read the rest of a line (aws: 50 characters) again from each
position where a match could begin: on a line of n characters without a match they take n * n steps."""

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
        text, found["keys"] = _without_private_keys(text)
        for pattern in key_patterns():
            text, count = pattern.subn(_without_key, text)
            found["keys"] += count
    if masks.emails and "@" in text:
        text = EMAIL.sub(lambda match: _replaced(match, _is_real(match[0]), "emails", found), text)
    if masks.ip_addresses:
        text = IP_ADDRESS.sub(lambda match: _replaced(match, _is_public(match[0]), "ip_addresses", found), text)
    return Masked(text, found)


def _without_private_keys(text: str) -> tuple[str, int]:
    """The text without its private keys, and how many there were: from a BEGIN line to the next END line.

    One pass over the lines. A pattern for the whole key would read to the end of the text from each BEGIN without END.
    """
    parts, copied, begin = [], 0, None
    for line in PRIVATE_KEY_LINE.finditer(text):
        if line[1] == "BEGIN" and begin is None:
            begin = line.start()
        elif line[1] == "END" and begin is not None:
            parts += [text[copied:begin], PLACEHOLDERS["keys"]]
            copied, begin = line.end(), None
    return "".join([*parts, text[copied:]]), len(parts) // 2


def _replaced(match: re.Match[str], real: bool, kind: str, found: Counter[str]) -> str:
    found[kind] += real
    return PLACEHOLDERS[kind] if real else match[0]


def _without_key(match: re.Match[str] | regex.Match[str]) -> str:
    """A pattern's group is the value, or only its prefix (`ghp`): then all of the match is the value."""
    value = max((group for group in match.groups() if group), key=len, default="")
    return match[0].replace(value, PLACEHOLDERS["keys"]) if len(value) >= SHORTEST_VALUE else PLACEHOLDERS["keys"]


def _is_real(email: str) -> bool:
    domain = email.rpartition("@")[2].lower()
    return not f".{domain}".endswith(RESERVED)


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


@cache
def key_patterns() -> tuple[re.Pattern[str] | regex.Pattern[str], ...]:
    """Credentials by their form; detectors by entropy or by a variable's name hit ordinary code."""
    modules = [import_module(f"detect_secrets.plugins.{name}") for name in DETECTORS]
    detectors = [
        member
        for module in modules
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__ and hasattr(member, "denylist")
    ]
    return (*LINEAR, *(pattern for detector in detectors for pattern in detector.denylist))
