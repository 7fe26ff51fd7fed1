"""Masks what must not be learned: e-mail addresses, public IP addresses, credentials.

The patterns of credentials are those of detect-secrets; a value is replaced, the text around it stays. Every other step
of cleaning reads the masked shards, so that duplicates, passages of evaluation sets and the split are judged on the
text that the model sees.

Four numbers with points are an IPv4 address if it is public, and no letter, digit, point, `=` or `-` is next to them:
code is full of versions such as `pkg==1.2.3.4`.
"""

import inspect
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import regex

from stages.formats.documents import Document, document_id, documents_of, read_shard, write_shard
from stages.runtime.atomic import known_sha256
from stages.runtime.cache import cache_key, hash_in_workers, map_cached

COUNTS = "counts.json"

PRIVATE_KEY_LINE = re.compile(r"-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")

DETECTORS = (
    "azure_storage_key", "discord", "github_token", "gitlab_token", "mailchimp", "pypi_token", "sendgrid", "slack",
    "square_oauth", "stripe", "telegram_token", "twilio",
)  # fmt: skip

LINEAR: dict[re.Pattern[str] | regex.Pattern[str], tuple[str, ...]] = {
    re.compile(r"(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[0-9A-Z]{16}"): (),  # AWS, the id of a key
    # AWS, the key: a quoted value, then the check that `aws` and `key` or the like are before it.
    regex.compile(
        r"""['"]([0-9a-zA-Z/+]{40})['"](?<=aws.{0,20}(?:key|pwd|pw|password|pass|token).{0,20}['"][0-9a-zA-Z/+]{40}['"])""",
        regex.IGNORECASE,
    ): ("aws",),
    # JSON web token
    re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]+=*\.[A-Za-z0-9_-]+=*(?:\.[A-Za-z0-9_-]+=*)?"): ("eyj",),
    re.compile(r"/:_authToken=\s*(npm_\S+|[A-Fa-f0-9-]{36})"): (),
    # OpenAI
    re.compile(r"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]*[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}"): ("t3blbkfj",),
}
"""In place of detect-secrets' patterns for the same, which read the rest of a line (aws: 50 characters) again from each
position where a match could begin: on a line of n characters without a match they take n * n steps. Each with what it
needs, as below."""

NEEDED_BY_DETECTOR: Mapping[str, tuple[str, ...]] = {
    "discord": (r"\.[a-z\d_-]{6}\.[a-z\d_-]{27}",),
    "mailchimp": (r"-us[0-9]",),
    "slack": ("xox", "://hoo"),
    "stripe": ("k_live_",),
    "telegram_token": (r":[a-z0-9_-]{35}",),
}
"""A lower-cased text without any of these patterns holds no such credential. Each pattern begins with a literal, which
is found far faster than a pattern that may begin with any letter. Other detectors' own patterns begin with one."""

EMAIL_NEEDED = (re.compile(r"@(?<=[A-Za-z0-9._%+-]@)[A-Za-z0-9-]{1,63}\."),)
IP_ADDRESS_NEEDED = (re.compile(r"\.\d{1,3}\.\d{1,3}\.\d"), re.compile(r":[0-9a-fA-F]{0,4}:[0-9a-fA-F]{0,4}:"))
"""The same for addresses, of the text itself."""

EMAIL = re.compile(
    # A line break or the like, written as an escape, is no part of the name: `"\njane@mail.org"`, `"\n@name.of"`.
    r"(?:(?<=\\[abfnrtv])|(?<![\w.+-])(?<!\\(?=[abfnrtv])))"
    r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![\w-])"
)

# Four numbers next to a letter, digit, point, `=` or `-` are a version. Global unicast addresses of IPv6 begin with 2
# or 3 (RFC 4291); three colons tell them from slices.
IP_ADDRESS = re.compile(
    r"(?=\d)(?<![\w.=-])(?:\d{1,3}(?:\.\d{1,3}){3}(?![\w=-])"
    r"|(?<!:)[23][0-9a-fA-F]{3}:(?:[0-9a-fA-F]{0,4}:){2,6}[0-9a-fA-F]{0,4}(?![:\w]))(?!\.\d)"
)

RESERVED = re.compile(r"[@.](?:example(?:\.(?:com|org|net))?|test|invalid)$", re.IGNORECASE)
"""The end of an address that belongs to nobody: its domain is reserved for documentation (RFC 2606)."""

PLACEHOLDERS = {"emails": "<EMAIL>", "ip_addresses": "<IP_ADDRESS>", "keys": "<KEY>"}

MIN_VALUE_LETTERS = 16
"""A shorter group of a pattern is a prefix, not a credential."""


class Masked(NamedTuple):
    """A text without what was masked, and how often each kind was found."""

    text: str
    found: Counter[str]


class MaskedShards(NamedTuple):
    """Shards under the names of their originals, with as many documents, in the same order."""

    paths: list[Path]
    counts: pd.DataFrame
    """How many values were masked: a row per document over all shards, a column per kind."""


def mask_shards(shards: Sequence[Path], kinds: Sequence[str]) -> MaskedShards:
    """The shards with what the kinds name replaced; the originals if there is no kind. A masked document has the id
    of its new text and stays in the shard of its original."""
    if not kinds:
        return MaskedShards(list(shards), pd.DataFrame())
    hash_in_workers(shards)
    names = json.dumps(kinds)
    entries = map_cached(
        "masked", shards, lambda shard: cache_key(names, shard.name, known_sha256(shard)), partial(_mask_shard, kinds)
    )
    rows = [row for entry in entries for row in json.loads((entry / COUNTS).read_text(encoding="utf-8"))]
    counts = pd.DataFrame(rows, columns=list(kinds)).fillna(0).astype(int)
    return MaskedShards([entry / shard.name for entry, shard in zip(entries, shards, strict=True)], counts)


def _mask_shard(kinds: Sequence[str], shard: Path, folder: Path) -> None:
    documents, counts = [], []
    for document in documents_of(read_shard(shard)):
        masked = mask(document.text, kinds)
        origin = (document.source, document.revision, document.path, document.license)
        documents.append(Document(document_id(masked.text), *origin, masked.text))
        counts.append(masked.found)
    write_shard(folder / shard.name, documents)
    (folder / COUNTS).write_text(json.dumps(counts), encoding="utf-8")


def mask(text: str, kinds: Collection[str]) -> Masked:
    """The text with `<EMAIL>`, `<IP_ADDRESS>` and `<KEY>` in place of values of `emails`, `ip_addresses`, `keys`."""
    found: Counter[str] = Counter()
    if "keys" in kinds:
        lowered = text.casefold()
        text = _without_private_keys(text, found)
        for pattern, needed in key_patterns():
            if any_in(needed, lowered):
                text = pattern.sub(lambda match: _without_key(match, found), text)
    if "emails" in kinds and any_in(EMAIL_NEEDED, text):
        text = EMAIL.sub(lambda match: _replaced(match, not RESERVED.search(match[0]), "emails", found), text)
    if "ip_addresses" in kinds and any_in(IP_ADDRESS_NEEDED, text):
        text = IP_ADDRESS.sub(lambda match: _replaced(match, _is_public(match[0]), "ip_addresses", found), text)
    return Masked(text, found)


def _without_private_keys(text: str, found: Counter[str]) -> str:
    """The text without its private keys, which are counted: from a BEGIN line to the next END line."""
    # Not a pattern for the whole key, which would read to the end of the text from each BEGIN without END.
    parts, copied, begin = [], 0, None
    for line in PRIVATE_KEY_LINE.finditer(text):
        if line[1] == "BEGIN" and begin is None:
            begin = line.start()
        elif line[1] == "END" and begin is not None:
            parts += [text[copied:begin], PLACEHOLDERS["keys"]]
            found["keys"] += 1
            copied, begin = line.end(), None
    return "".join([*parts, text[copied:]])


def _replaced(match: re.Match[str], real: bool, kind: str, found: Counter[str]) -> str:
    if not real:
        return match[0]
    found[kind] += 1
    return PLACEHOLDERS[kind]


def _without_key(match: re.Match[str] | regex.Match[str], found: Counter[str]) -> str:
    """A pattern's group is the value, or only its prefix (`ghp`): then all of the match is the value."""
    value = max((group for group in match.groups() if group), key=len, default="")
    found["keys"] += 1
    return match[0].replace(value if len(value) >= MIN_VALUE_LETTERS else match[0], PLACEHOLDERS["keys"])


def any_in(needed: Sequence[re.Pattern[str]], text: str) -> bool:
    """True if the text matches one of the patterns, or if there are no patterns."""
    return not needed or any(pattern.search(text) for pattern in needed)


@cache
def key_patterns() -> tuple[tuple[re.Pattern[str] | regex.Pattern[str], tuple[re.Pattern[str], ...]], ...]:
    """Credentials by their form, each with what it needs; detectors by entropy or by a variable's name hit code."""
    patterns = list(LINEAR.items())
    for name in DETECTORS:
        module = import_module(f"detect_secrets.plugins.{name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if member.__module__ == module.__name__ and hasattr(member, "denylist"):
                patterns += [(pattern, NEEDED_BY_DETECTOR.get(name, ())) for pattern in member.denylist]
    return tuple((pattern, tuple(map(re.compile, needed))) for pattern, needed in patterns)


@lru_cache(maxsize=2**16)
def _is_public(numbers: str) -> bool:
    """Whether they are an address, and one of the Internet. Texts name the same few again and again."""
    try:
        return ipaddress.ip_address(numbers).is_global
    except ValueError:
        return False
