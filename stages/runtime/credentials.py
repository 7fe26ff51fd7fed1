"""Finds, removes and refuses credentials in URLs.

params.yaml is recorded, cached and published as it is, so a URL in it must not contain a credential:

- a password before the host (`scheme://user:password@host`, `https://token@host`);
- a parameter whose name ends like a signature, token, password or key, such as `X-Amz-Signature` and
  `X-Amz-Credential` (S3), `sig` (Azure), `access_token`, `key`.
"""

import re
from collections.abc import Iterator, Mapping

from stages.runtime.errors import UserError

LOGIN = re.compile(
    r"(?<=://)[^\s/?#@:\"<>]*:(?!\$)[^\s/?#@\"<>]+@|((?<=http://)|(?<=https://))(?!\$)[^\s/?#@:\"<>]+@", re.IGNORECASE
)
"""User and password or, with http, a user alone, which is usually a token. Variables such as `$PASSWORD`, which a shell
or DVC substitutes, do not count."""

SECRET_QUERY = re.compile(
    r"(?P<place>://[^\s\"<>\\?#]*)[?#](?:[^\s\"<>\\]*[?&#;])?"
    r"(?P<name>[\w.-]*(?:sig|signature|token|secret|password|key|credential))=[^\s\"<>\\]+",
    re.IGNORECASE,
)
"""Host and path, followed by a query or fragment with a parameter that is a credential."""

SECRET_NAMES = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH_STRING|CONNECTION_URL", re.IGNORECASE
)
"""Matches the names of environment variables whose values are credentials."""

HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")
"""A token of the Hugging Face Hub, including shorter tokens of earlier formats."""

CREDENTIAL_REMEDY = (
    "which logs, records and publications would show; take it out, and give it in ~/.netrc or fsspec's configuration "
    "(docs/how-to/data.md, Sources that need a login)"
)


def credential_in(text: str) -> str | None:
    """The kind of the first credential in a text's URLs; None if there is none."""
    return next((kind for _, kind in credentials(text)), None)


def credentials(text: str) -> Iterator[tuple[int, str]]:
    """Yield position and kind of each credential in a text's URLs."""
    yield from ((match.start(), "a password") for match in LOGIN.finditer(text))
    yield from ((match.start(), f"the parameter `{match['name']}`") for match in SECRET_QUERY.finditer(text))


def without_credentials(text: str) -> str:
    """A text without the logins in its URLs and without whole queries that contain a credential."""
    return SECRET_QUERY.sub(r"\g<place>", LOGIN.sub("", text))


def refuse_credentials(where: str, values: object) -> None:
    """Raise UserError that names, without its value, each of the nested `values` with a credential in a URL."""
    if faults := [f"{where}: {key}the URL holds {kind}, {CREDENTIAL_REMEDY}" for key, kind in _found("", values)]:
        raise UserError("\n".join(faults))


def _found(key: str, values: object) -> Iterator[tuple[str, str]]:
    if isinstance(values, str) and (kind := credential_in(values)):
        yield f"{without_credentials(key)}: " if key else "", kind
    if isinstance(values, Mapping):
        for name, value in values.items():
            nested = f"{key}.{name}" if key else str(name)
            yield from _found(nested, str(name))
            yield from _found(nested, value)
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from _found(f"{key}.{number}" if key else str(number), value)
