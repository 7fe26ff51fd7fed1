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


def passes(error: BaseException | None) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in PASSING_STATUS
    if isinstance(error, RuntimeError):  # an upload in a thread: the reason is its cause
        return passes(error.__cause__)
    return isinstance(error, TransportError)


def waits() -> Iterator[float]:
    """Seconds to wait after each attempt but the last."""
    return (FIRST_WAIT_SECONDS * 2**number for number in range(ATTEMPTS - 1))


def retried(call: Callable[[], Result]) -> Result:
    """The result of a call that may be made twice without harm."""
    for wait in waits():
        try:
            return call()
        except (HfHubHTTPError, TransportError, RuntimeError) as error:
            if not passes(error):
                raise
            print(f"the Hub did not answer as it should ({type(error).__name__}); trying again in {wait:g} s")
        time.sleep(wait)
    return call()
