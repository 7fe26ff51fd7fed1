"""Credentials in URLs: found, refused, taken out.

What a user writes into params.yaml is recorded, cached and published as it is, so a URL there may hold none. Found are:

- a password before the host (`scheme://user:password@host`), and with http any user (`https://token@host`);
- a parameter of the query or the fragment that is named like a signature, a token, a key or a password, such as
  `X-Amz-Signature` and `X-Amz-Credential` (S3), `X-Goog-Signature`, `sig` (Azure), `Signature`, `access_token`, `key`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

from stages.runtime.entry import UserError

URL = re.compile(r'[A-Za-z][\w+.-]*://(?:(?!::[A-Za-z][\w+.-]*://)[^\s"<>\\])+')
"""In any text; of fsspec's chains (`zip://*.csv::https://host/a.zip`) each part."""

PARTS = re.compile(r"([\w+.-]+)://(?:([^/?#]*)@)?([^?#]*)(.*)", re.DOTALL)
"""Scheme, user and password, host and path, query and fragment. `urlsplit` fails at wildcards such as `[0-9]`."""

LATE_AT = re.compile(r"[^:/?#@\[]+:(?!\d*(?:[/?#]|$))[^:@]*@")
"""User and password with a `/`, `#` or `?` in the password, where the host seems to end."""

VARIABLE = re.compile(r"\$(\w+|\{[\w.]+\})")
"""A password that a shell or DVC puts in is none yet."""

SECRET_WORDS = {
    *("auth", "authorization", "bearer", "hmac", "jwt", "key", "pass", "pw", "pwd", "rlkey", "sas"),
    *("session", "sessionid", "sid", "sig", "sign", "tempauth"),
}
SECRET_ENDINGS = (
    *("signature", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials"),
    *("apikey", "accesskey", "authkey"),
)
"""Of the words of a parameter's name."""

SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
"""Parts of the names of environment variables whose values are credentials."""

REMEDY = (
    "which logs, records and publications would show; take it out, and give it in ~/.netrc or fsspec's configuration "
    "(docs/how-to/data.md, Sources that need a login)"
)


def credential_in(text: str) -> str | None:
    """What kind of credential the first URL in a text holds that has one, without the credential itself."""
    return next((found[1] for found in credentials(text)), None)


def credentials(text: str) -> Iterator[tuple[int, str]]:
    """Position and kind of each credential that a URL in a text holds."""
    for url in URL.finditer(text):
        if kind := _kind(url[0]):
            yield url.start(), kind


def without_credentials(text: str) -> str:
    """A text whose URLs have lost users, passwords and the parameters that are credentials."""
    return URL.sub(lambda url: _public(url[0]), text) if "://" in text else text


def refuse_credentials(where: str, values: object) -> None:
    """Raise UserError that names each of the nested `values` whose URL holds a credential; it does not repeat it."""
    if faults := [f"{where}: {key}the URL holds {kind}, {REMEDY}" for key, kind in _found("", values)]:
        raise UserError("\n".join(faults))


def _found(key: str, values: object) -> Iterator[tuple[str, str]]:
    if isinstance(values, str):
        # A value that is one URL is read as a whole too: in prose a blank, `<` or `"` would end it.
        whole = PARTS.fullmatch(values)
        in_login = whole is not None and ":" in (whole[2] or "")
        if kind := credential_in(values) or (_kind(values) if in_login else None):
            yield f"{without_credentials(key)}: " if key else "", kind
        return
    entries: Iterable[tuple[object, object]] = ()
    if isinstance(values, Mapping):
        entries = values.items()
    elif isinstance(values, list):
        entries = enumerate(values)
    for name, value in entries:
        own = f"{key}.{name}" if key else str(name)
        if isinstance(name, str):
            yield from ((f"{without_credentials(own)}: ", kind) for _, kind in _found("", name))
        yield from _found(own, value)


def _kind(url: str) -> str | None:
    match = PARTS.fullmatch(url)
    if match is None:
        return None
    scheme, login, place, rest = match.groups()
    return _kind_of_login(scheme, unquote(login)) if login else _kind_of_rest(place, rest)


def _kind_of_login(scheme: str, login: str) -> str | None:
    user, _, password = login.partition(":")
    if password:
        return None if VARIABLE.fullmatch(password) else "a password"
    # Over SSH, FTP or Azure's `abfs` a user alone is a name; over HTTP it is mostly a token.
    over_http = scheme.lower().endswith(("http", "https"))
    return "a user name or token before its host" if over_http and not VARIABLE.fullmatch(user) else None


def _kind_of_rest(place: str, rest: str) -> str | None:
    if LATE_AT.match(place + rest):
        return "a password"
    for parameter in re.split("[?&;#]", rest)[1:]:
        name, _, value = map(unquote, parameter.partition("="))
        if value and _is_secret(name):
            return f"the parameter `{name}`"
        if kind := credential_in(value):
            return kind
    return None


def _is_secret(name: str) -> bool:
    """Whether a parameter's name has the word for a credential; `AWSAccessKeyId` has three words more."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return any(word in SECRET_WORDS or word.endswith(SECRET_ENDINGS) for word in words)


def _public(url: str) -> str:
    match = PARTS.fullmatch(url)
    if match is None or not _kind(url):
        return url
    scheme, login, place, rest = match.groups()
    # Without the whole query: the other parameters of a signed URL (user, expiry) say nothing of the file.
    return f"{scheme}://{'' if not login and LATE_AT.match(place + rest) else place}"
