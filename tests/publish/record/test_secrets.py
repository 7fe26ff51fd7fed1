import pytest

from stages.publish.record.source import find_secret

GITHUB = "ghp_" + "A1b2C3d4E5" * 3 + "f6G7h8"
HUB = "hf_" + "AbCdEfGhIj" * 4


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"a = 1\nkey = '{GITHUB}'\n", "GitHub Token, line 2"),
        (HUB, "Hugging Face token, line 1"),
        ("-----BEGIN RSA " + "PRIVATE KEY-----\nMII\n", "Private Key, line 1"),
        ("\n\naws_key = 'AKIA" + "IOSFODNN7EXAMPLE'\n", "AWS Access Key, line 3"),
    ],
)
def test_a_credential_is_found_by_its_form(text: str, kind: str) -> None:
    assert find_secret(text.encode()) == kind


def test_hashes_and_ordinary_code_are_none() -> None:
    text = f"password = read('password')\nmd5: {'0123456789abcdef' * 2}\ntoken = {'x' * 40!r}\n\xff"

    assert find_secret(text.encode("latin-1")) is None


def test_a_line_may_be_allowed_by_name() -> None:
    assert find_secret(f"key = '{GITHUB}'  # pragma: allowlist secret\n".encode()) is None


def test_the_value_of_a_secret_variable_is_found_whatever_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct horse")
    monkeypatch.setenv("OTHER_TOKEN", "true")

    assert find_secret(b"a\nb correct horse c: true\n") == "the value of MY_SERVICE_TOKEN, line 2"
    assert find_secret(b"true") is None


def test_a_password_in_a_url_is_found_where_urls_are_no_examples() -> None:
    text = b"a\nurl: http://bob:password@host/\n"

    assert find_secret(text) is None
    assert find_secret(text, in_urls=True) == "a URL with a password, line 2"
    assert find_secret(text.replace(b"host/", b"host/  # pragma: allowlist secret"), in_urls=True) is None
