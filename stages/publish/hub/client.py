"""The Hub's client with the token from the environment, and what its errors mean for a user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

from stages.publish.hub.retries import HubError, transient, underlying
from stages.runtime.entry import UnavailableError, UserError

TOKEN_VARIABLE = "HF_TOKEN"

SETTING = "publish.repository"

AGAIN = "run the same command again, files that arrived are not sent twice"


def connect(repository: str, setting: str = SETTING) -> HfApi:
    """The Hub's client with the token from the environment; a token that is stored on this machine is not used.

    `setting` is the parameter that names the repository, for messages.
    """
    if constants.HF_HUB_OFFLINE:
        raise UserError(
            f"{setting} = {repository}: HF_HUB_OFFLINE is set, so nothing can be published to the Hub; unset "
            f"it, or set {setting} to null"
        )
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise UserError(
            f"{setting} = {repository}: no token; put one with write access to it in {TOKEN_VARIABLE} "
            f"({constants.ENDPOINT}/settings/tokens), or set {setting} to null"
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
