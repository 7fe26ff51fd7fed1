"""Credentials in URLs: where a text holds one, the text without it, and the refusal of parameters that hold one.

What a user writes into params.yaml is recorded, cached and published as it is, so a URL there may hold no credential:

- no password before the host (`scheme://user:password@host`, `https://token@host`);
- no parameter whose name ends like that of a signature, a token, a password or a key, such as `X-Amz-Signature` and
  `X-Amz-Credential` (S3), `sig` (Azure), `access_token`, `key`.
"""

import re
from collections.abc import Iterator, Mapping

from stages.runtime.errors import UserError

LOGIN = re.compile(
    r"(?<=://)[^\s/?#@:\"<>]*:(?!\$)[^\s/?#@\"<>]+@|((?<=http://)|(?<=https://))(?!\$)[^\s/?#@:\"<>]+@", re.IGNORECASE
)
"""User and password, and with http a user alone, which is mostly a token. What a shell or DVC puts in, such as
`$PASSWORD`, is no password yet."""

SECRET_QUERY = re.compile(
    r"(?P<place>://[^\s\"<>\\?#]*)[?#](?:[^\s\"<>\\]*[?&#;])?"
    r"(?P<name>[\w.-]*(?:sig|signature|token|secret|password|key|credential))=[^\s\"<>\\]+",
    re.IGNORECASE,
)
"""Host and path, and a query or fragment with such a parameter."""

SECRET_NAMES = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH_STRING|CONNECTION_URL", re.IGNORECASE
)
"""Parts of the names of environment variables whose values are credentials."""

HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")
"""A token of the Hugging Face Hub; shorter than those of today, so that no earlier form gets through."""

CREDENTIAL_REMEDY = (
    "which logs, records and publications would show; take it out, and give it in ~/.netrc or fsspec's configuration "
    "(docs/how-to/data.md, Sources that need a login)"
)


def credential_in(text: str) -> str | None:
    """Describe the credential in a URL of a text, without the credential itself."""
    return next((kind for _, kind in credentials(text)), None)


def credentials(text: str) -> Iterator[tuple[int, str]]:
    """Position and kind of each credential that a URL in a text holds."""
    yield from ((match.start(), "a password") for match in LOGIN.finditer(text))
    yield from ((match.start(), f"the parameter `{match['name']}`") for match in SECRET_QUERY.finditer(text))


def without_credentials(text: str) -> str:
    """A text whose URLs have lost users with passwords, and the queries with a credential.

    The other parameters of a signed URL (user, expiry) say nothing of the file.
    """
    return SECRET_QUERY.sub(r"\g<place>", LOGIN.sub("", text))


def refuse_credentials(where: str, values: object) -> None:
    """Raise UserError that names each of the nested `values` whose URL holds a credential; it does not repeat it."""
    if faults := [f"{where}: {key}the URL holds {kind}, {CREDENTIAL_REMEDY}" for key, kind in _found("", values)]:
        raise UserError("\n".join(faults))


def _found(key: str, values: object) -> Iterator[tuple[str, str]]:
    if isinstance(values, str) and (kind := credential_in(values)):
        yield f"{without_credentials(key)}: " if key else "", kind
    if isinstance(values, Mapping):
        for name, value in values.items():
            own = f"{key}.{name}" if key else str(name)
            yield from _found(own, str(name))
            yield from _found(own, value)
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from _found(f"{key}.{number}" if key else str(number), value)
