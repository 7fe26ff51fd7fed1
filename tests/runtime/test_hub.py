"""What the errors of the Hub's client mean; that it is the real client's is shown where models and data are read."""

import re
from pathlib import Path

import pytest
from httpx2 import Client, ConnectError, ReadTimeout, Request, Response
from huggingface_hub import constants
from huggingface_hub.utils import hf_raise_for_status

from stages.runtime.errors import EXIT_UNAVAILABLE, EXIT_USER_ERROR, UserError
from stages.runtime.hub import (
    CERTIFICATES,
    PROXIES,
    HubFailure,
    data_set_error,
    explained,
    hub_failure_of,
    network_fault,
    snapshot,
)

ADDRESS = "https://huggingface.co/api/models/me/base/tree/main"


def answer(status: int, code: str = "", pause: str = "") -> Exception:
    """What the client makes of a status and the Hub's own code for it."""
    headers = {"X-Error-Code": code, "Retry-After": pause}
    try:
        hf_raise_for_status(Response(status, headers=headers, request=Request("GET", ADDRESS)))
    except Exception as error:
        return error
    raise AssertionError("no error")


def raised_over(cause: Exception, kind: type[Exception] = FileNotFoundError) -> Exception:
    """What a library raises of its own while it handles an error."""
    try:
        try:
            raise cause
        except Exception:
            raise kind("not in the cache either") from None
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (answer(404, "RepoNotFound"), HubFailure.NOT_FOUND),
        (answer(401), HubFailure.NOT_FOUND),  # as the Hub answers of a missing repository to those without a token
        (answer(404, "RevisionNotFound"), HubFailure.NOT_FOUND),
        (answer(404, "EntryNotFound"), HubFailure.NOT_FOUND),
        (answer(404), HubFailure.NOT_FOUND),
        (answer(403), HubFailure.REFUSED),
        (answer(403, "GatedRepo"), HubFailure.REFUSED),
        (answer(401, "GatedRepo"), HubFailure.REFUSED),
        (answer(429), HubFailure.NO_ANSWER),
        (answer(503), HubFailure.NO_ANSWER),
        (answer(400), HubFailure.OTHER),
        (ConnectError("refused"), HubFailure.NO_ANSWER),
        (ReadTimeout("silent"), HubFailure.NO_ANSWER),
        (ConnectionError("reset"), HubFailure.NO_ANSWER),
        (TimeoutError("too long"), HubFailure.NO_ANSWER),
        (PermissionError("the cache's folder"), HubFailure.OTHER),
        (raised_over(answer(403)), HubFailure.REFUSED),
        (raised_over(ConnectError("refused")), HubFailure.NO_ANSWER),
        (raised_over(answer(404), ConnectionError), HubFailure.NO_ANSWER),  # the later one
    ],
)
def test_what_an_error_says_of_the_hub(error: Exception, failure: HubFailure) -> None:
    assert hub_failure_of(error) == failure


def test_without_a_network_on_purpose_a_retry_does_not_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    with pytest.raises(
        UserError, match=r"^params.yaml: it: not on this machine, and HF_HUB_OFFLINE is set: "
    ) as caught:
        snapshot("params.yaml: it", "me/base", "0" * 40, ["*.json"])

    assert caught.value.exit_code == EXIT_USER_ERROR


def test_a_name_that_can_be_no_repositorys_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match=r"^params.yaml: it: the request failed: .*'me--base'"):
        snapshot("params.yaml: it", "me--base", "0" * 40, ["*.json"])


def test_after_too_many_requests_the_message_says_how_long_to_wait() -> None:
    asked = r"does not answer: .*; it asks to wait 240 s: run the same command again then$"

    with pytest.raises(UserError, match=asked), explained("params.yaml: it"):
        raise answer(429, pause="240")


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("SSL_CERT_FILE", "missing.pem", "SSL_CERT_FILE=missing.pem does not exist: "),
        ("all_proxy", "socks://me:secret@127.0.0.1:9", "all_proxy=socks://...: write http://"),
        ("HTTPS_PROXY", "http://127.0.0.1:9", ""),
    ],
)
def test_a_variable_with_which_no_client_starts_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, fault: str
) -> None:
    for name in (*PROXIES, *CERTIFICATES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)

    assert network_fault().startswith(fault)
    assert "secret" not in network_fault()
    if fault:
        with pytest.raises(UserError, match=f"^params.yaml: it: {fault}"), explained("params.yaml: it"):
            Client()
    else:
        Client()


def test_a_fault_of_the_code_is_not_taken_for_one_of_the_network() -> None:
    with pytest.raises(RecursionError, match="a bug"), explained("params.yaml: it"):
        raise RecursionError("a bug")


@pytest.mark.parametrize(
    ("error", "code", "advice"),
    [
        (answer(500), EXIT_UNAVAILABLE, "the Hub does not answer: try again"),
        (answer(403), EXIT_USER_ERROR, "access denied: correct HF_TOKEN, or ask for access on the data set's page"),
        (answer(404), EXIT_USER_ERROR, "correct its name"),
        (ValueError("no such split"), EXIT_USER_ERROR, "correct its name"),
    ],
)
def test_of_a_data_set_the_message_ends_with_what_to_do(error: Exception, code: int, advice: str) -> None:
    told = data_set_error("section.key: data set `x` cannot be read", error, "correct its name")

    assert (told.exit_code, str(told)) == (code, f"section.key: data set `x` cannot be read; {advice}")


def test_of_a_data_set_while_offline_it_names_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    told = data_set_error("section.key: it", ConnectionError("no"), "correct its name")

    assert told.exit_code == EXIT_USER_ERROR
    assert re.search("HF_HUB_OFFLINE .* is set: run once without it, or correct its name$", str(told))
