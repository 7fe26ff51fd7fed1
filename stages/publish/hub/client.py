"""The Hub's client: its token, which of its failures are transient, how long anything may take, what its errors mean.

huggingface_hub 2.4.0 retries uploads itself, but not the calls that create repositories, branches, commits and tags,
and its HTTP client has no timeout. hf_xet, which uploads large files, raises Python's own exceptions.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from json import JSONDecodeError
from typing import Any, TypeVar

from httpx2 import TransportError
from huggingface_hub import HfApi, constants, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils._http import default_client_factory

from stages.runtime.entry import UnavailableError, UserError

TOKEN_VARIABLE = "HF_TOKEN"

SETTING = "publish.repository"

AGAIN = "run the same command again, files that arrived are not sent twice"

Answer = TypeVar("Answer")

ATTEMPTS = 5
FIRST_WAIT_SECONDS = 0.5
"""Doubled from attempt to attempt."""

TRANSIENT_STATUS = {408, 409, 412, 429, 500, 502, 503, 504}
"""409: another write was in progress. 412: the branch has moved."""

REQUEST_SECONDS = 60.0
"""Of silence until a request is given up."""

BASE_SECONDS, SLOWEST_BYTES_PER_SECOND = 600.0, 250_000
"""A publication may take so long, plus its size at this rate."""

XET_SETTINGS = {
    "HF_XET_CLIENT_CONNECT_TIMEOUT": "20s",
    "HF_XET_CLIENT_READ_TIMEOUT": "60s",
    "HF_XET_CLIENT_RETRY_MAX_DURATION": "60s",
    "HF_XET_TELEMETRY_ENABLED": "false",
}
"""hf_xet's own settings, which it reads from the environment; a user's values are kept."""

HubError = (
    HfHubHTTPError,
    TransportError,
    JSONDecodeError,  # something between here and the Hub answered instead of it, e.g. a captive portal
    RuntimeError,  # an upload failed
    ConnectionError,  # hf_xet
    TimeoutError,  # hf_xet
    PermissionError,  # hf_xet: the storage refused the token
    LocalEntryNotFoundError,  # a download whose first request failed; that one's error is the cause
)
"""What the clients raise."""


def configure_clients() -> None:
    """Give every request a timeout, and send no telemetry."""

    def with_timeout() -> Any:
        client = default_client_factory()
        client.timeout = REQUEST_SECONDS
        return client

    set_client_factory(with_timeout)
    constants.HF_HUB_DISABLE_TELEMETRY = True
    for name, value in XET_SETTINGS.items():
        os.environ.setdefault(name, value)


def underlying(error: BaseException) -> BaseException:
    """The own error of a failed upload or download, or the error itself."""
    wrapped = isinstance(error, RuntimeError | LocalEntryNotFoundError)
    return (wrapped and error.__cause__) or error


def transient(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    reason = underlying(error)
    if isinstance(reason, HfHubHTTPError):
        return reason.response.status_code in TRANSIENT_STATUS
    return not isinstance(reason, PermissionError)


def retried(call: Callable[[], Answer]) -> Answer:
    """The result of a call that may be made twice without harm."""
    for number in range(ATTEMPTS - 1):
        wait = FIRST_WAIT_SECONDS * 2**number
        try:
            return call()
        except HubError as error:
            if not transient(error):
                raise
            print(f"a call to the Hub failed ({type(underlying(error)).__name__}); retrying in {wait:g} s", flush=True)
        time.sleep(wait)
    return call()


def time_limit(size: int) -> float:
    """Seconds that a publication of `size` bytes may take."""
    return BASE_SECONDS + size / SLOWEST_BYTES_PER_SECOND


def within(seconds: float, call: Callable[[], Answer], late: str) -> Answer:
    """The result of a call. Raises UnavailableError(`late`) after `seconds`, also while compiled code is waiting.

    The call is then abandoned in its thread, which ends with the process.
    """
    outcome: Future[Answer] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise UnavailableError(late)
    return outcome.result()


def connect(repository: str) -> HfApi:
    """The Hub's client with the token from the environment; a token that is stored on this machine is not used."""
    if constants.HF_HUB_OFFLINE:
        raise UserError(
            f"{SETTING} = {repository}: HF_HUB_OFFLINE is set, so nothing can be published to the Hub; unset "
            f"it, or set {SETTING} to null"
        )
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise UserError(
            f"{SETTING} = {repository}: no token; put one with write access to it in {TOKEN_VARIABLE} "
            f"({constants.ENDPOINT}/settings/tokens), or set {SETTING} to null"
        )
    return HfApi(token=token)


@contextmanager
def explained(api: HfApi, repository: str, setting: str = SETTING) -> Iterator[None]:
    """Turn the clients' errors into messages that say what to do."""
    try:
        yield
    except HubError as error:
        kind = UnavailableError if transient(error) else UserError
        raise kind(f"{setting} = {repository}: {describe(underlying(error), api)}") from None


def describe(error: BaseException, api: HfApi) -> str:
    """What an error of the clients means for the user, in one line."""
    details = " ".join(str(error).split())
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status in (401, 403, 404) or isinstance(error, PermissionError):
        # A full quota comes as 403 too; only the Hub's own words tell.
        words = " ".join(((isinstance(error, HfHubHTTPError) and error.server_message) or "").split())
        return (
            f"the token in {TOKEN_VARIABLE} may not write there ({f'status {status}' if status else details}); give it "
            f"write access ({api.endpoint}/settings/tokens), or correct the name"
            f"{f'; the Hub says: {words}' if words else ''}"
        )
    if status is not None and not transient(error):
        return f"the Hub refused with status {status}: {details}"
    if status is not None:
        reason = f"the Hub keeps answering with status {status}"
    elif isinstance(error, JSONDecodeError):
        reason = f"{api.endpoint} does not answer as a Hub does (a login page of the network?)"
    else:
        reason = f"cannot reach {api.endpoint} or its storage ({details})"
    return f"{reason}; {AGAIN}"
