"""Reads models from the Hugging Face Hub, and explains the errors of its clients to the user."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from sys import modules
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator

from stages.runtime.atomic import require_here
from stages.runtime.errors import UnavailableError, UserError, first_line
from stages.runtime.section import FixedFile, NamedFile

HUB_COMMIT = re.compile(r"(?P<repository>[\w.-]+(/[\w.-]+)?)@(?P<commit>[0-9a-f]{40})")
"""A model on the Hub in params.yaml. Not a branch or a tag, which can move to other weights."""


def _as_file(name: str) -> str:
    if HUB_COMMIT.fullmatch(name):
        return name
    # A published revision: published/NAME/revisions/REVISION.
    return FixedFile(name) if Path(name).parent.name == "revisions" else NamedFile(name)


ModelName: TypeAlias = Annotated[str, AfterValidator(_as_file)]
"""The type of a parameter that names a model: a folder, or a commit on the Hub."""

RETRIED = {408, 409, 412, 425, 429}
"""HTTP status codes, besides 5xx, after which a retry may succeed. 409: another write is in progress. 412: the branch
has moved."""

PROXIES = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "http_proxy", "https_proxy")
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def network_fault() -> str:
    """An error message about a variable that keeps HTTP clients from starting; empty if there is none."""
    for name in CERTIFICATES:
        if (path := os.environ.get(name)) and not Path(path).exists():
            return f"{name}={path} does not exist: correct it, or unset it"
    for name in PROXIES:
        scheme, colon, _ = os.environ.get(name, "").partition("://")  # the rest may contain a password
        if colon and scheme not in ("http", "https") and not (scheme in ("socks5", "socks5h") and find_spec("socksio")):
            return f"{name}={scheme}://...: write http://, or socks5:// after `pip install socksio`, or unset it"
    return ""


class HubFailure(Enum):
    """A failure of the Hub, with its message for the user."""

    NOT_FOUND = "not found, or your HF_TOKEN has no access"
    """No such repository, revision or file; the Hub reports the same for private ones."""
    REFUSED = "access is refused"
    NO_ANSWER = "the Hub does not answer"
    """A retry may help."""
    OFFLINE = "not on this machine, and HF_HUB_OFFLINE is set"
    OTHER = "the request failed"


class NotFoundError(UserError):
    """The Hub has no such revision, or hides it."""


def hub_failure_of(error: BaseException) -> HubFailure:
    """Classify an error of the Hub's client or of a library that calls it.

    Libraries wrap the client's errors, so the first network error in the chain decides.
    """
    from httpx2 import TransportError
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    for cause in chain(error):
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            if status in RETRIED or status >= 500:
                return HubFailure.NO_ANSWER
            # Without a token the Hub answers 401 for a missing repository.
            missing = isinstance(cause, RepositoryNotFoundError) and not isinstance(cause, GatedRepoError)
            if missing or status == 404:
                return HubFailure.NOT_FOUND
            return HubFailure.REFUSED if status in (401, 403) else HubFailure.OTHER
        if isinstance(cause, ConnectionError | TimeoutError | TransportError):
            datasets = modules.get("datasets")  # it has its own switch, HF_DATASETS_OFFLINE
            offline = constants.HF_HUB_OFFLINE or (datasets is not None and datasets.config.HF_HUB_OFFLINE)
            return HubFailure.OFFLINE if offline else HubFailure.NO_ANSWER
    return HubFailure.OTHER


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, its cause, the cause's cause, and so on."""
    cause: BaseException | None = error
    while cause:
        yield cause
        cause = cause.__cause__ or cause.__context__


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Convert the client's errors to errors for users, which begin with `what`, the name of the parameter.

    Raises NotFoundError, UnavailableError if a retry may help, else UserError. A RuntimeError or an ImportError that
    neither the Hub nor the environment caused is a bug and passes unchanged.
    """
    # Imported here because they take a second.
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    # ValueError: invalid names; RuntimeError: hf_xet; ImportError: proxies.
    except (OSError, HTTPError, ValueError, RuntimeError, ImportError) as error:
        failure = hub_failure_of(error)
        if failure is HubFailure.OTHER and (fault := network_fault()):
            raise UserError(f"{what}: {fault}") from None
        if isinstance(error, RuntimeError | ImportError) and failure is HubFailure.OTHER:
            raise
        kind = {HubFailure.NOT_FOUND: NotFoundError, HubFailure.NO_ANSWER: UnavailableError}.get(failure, UserError)
        # The client's "not cached, and the Hub failed" contains the Hub's message only in later lines.
        reason = next((cause for cause in chain(error) if isinstance(cause, HfHubHTTPError)), error)
        pause = getattr(getattr(reason, "response", None), "headers", {}).get("Retry-After")
        asked = f"; it asks to wait {pause} s: run the same command again then" if pause else ""
        raise kind(f"{what}: {failure.value}: {first_line(reason)}{asked}") from None


def snapshot(what: str, repository: str, commit: str, files: Sequence[str], *, download: bool = True) -> Path:
    """The folder with a model's files (patterns) at a commit. Without `download` they must be on this machine.

    Raises as `explained` does.
    """
    from huggingface_hub import snapshot_download

    with explained(what):
        return Path(
            snapshot_download(repository, revision=commit, allow_patterns=list(files), local_files_only=not download)
        )


def model_folder(what: str, name: str, files: Sequence[str], *, download: bool = True) -> tuple[Path, str | None]:
    """The folder of a model, given as a folder or as `owner/name@COMMIT`, and the commit.

    Raises UserError if it does not exist, has no safetensors or contains pointers of Git LFS; else as `snapshot`.
    """
    folder, commit = Path(name), None
    if named := HUB_COMMIT.fullmatch(name):
        commit = named["commit"]
        folder = snapshot(what, named["repository"], commit, files, download=download)
    elif not folder.is_dir():
        raise UserError(
            f"{what}: no such folder; a model of the Hub is named owner/name@COMMIT, with all 40 digits of the commit"
        )
    require_here(*(file for pattern in files for file in folder.glob(pattern)))
    if not list(folder.glob("*.safetensors")):
        raise UserError(f"{what}: holds no *.safetensors; pickled weights are not loaded, as they can run code")
    return folder, commit


def require_weights(what: str, loading_info: Mapping[str, Any]) -> None:
    """Raise UserError if weights of the architecture are missing, which transformers would initialize randomly."""
    if missing := sorted(loading_info["missing_keys"]):
        raise UserError(f"{what}: weights are missing: {', '.join(missing)}")


def data_set_error(what: str, error: Exception, remedy: str) -> UserError:
    """The error for users if a data set could not be read.

    `what`: which one and why; `remedy`: what to do if neither a retry nor a token helps.
    """
    failure = hub_failure_of(error)
    remedies = {
        HubFailure.NO_ANSWER: "the Hub does not answer: try again",
        HubFailure.REFUSED: "access denied: correct HF_TOKEN, or ask for access on the data set's page",
        HubFailure.OFFLINE: "its data is not on this machine, and HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set: run "
        f"once without it, or {remedy}",
    }
    kind = UnavailableError if failure is HubFailure.NO_ANSWER else UserError
    return kind(f"{what}; {remedies.get(failure, network_fault() or remedy)}")
