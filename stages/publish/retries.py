"""Which of the Hub's failures pass, and how often to try again.

huggingface_hub retries uploads by itself, but not what creates repositories, branches, commits and tags.
"""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from httpx2 import TransportError
from huggingface_hub.errors import HfHubHTTPError

Result = TypeVar("Result")

ATTEMPTS = 5
FIRST_WAIT_SECONDS = 0.5
"""Doubled from attempt to attempt."""

PASSING_STATUS = {408, 409, 412, 429, 500, 502, 503, 504}
"""409: another write was under way. 412: the branch has moved on."""


HubError = (HfHubHTTPError, TransportError, RuntimeError)
"""What the client raises; a RuntimeError where an upload failed."""


def underlying(error: BaseException) -> BaseException:
    """The failed upload's own error, or the error itself."""
    return error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error


def passes(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    reason = underlying(error)
    if isinstance(reason, HfHubHTTPError):
        return reason.response.status_code in PASSING_STATUS
    return isinstance(reason, TransportError)


def waits() -> Iterator[float]:
    """Seconds to wait after each attempt but the last."""
    return (FIRST_WAIT_SECONDS * 2**number for number in range(ATTEMPTS - 1))


def retried(call: Callable[[], Result]) -> Result:
    """The result of a call that may be made twice without harm."""
    for wait in waits():
        try:
            return call()
        except HubError as error:
            if not passes(error):
                raise
            print(
                f"the Hub did not answer as it should ({type(underlying(error)).__name__}); trying again in {wait:g} s",
                flush=True,
            )
        time.sleep(wait)
    return call()
