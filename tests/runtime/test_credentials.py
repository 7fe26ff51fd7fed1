from pathlib import Path

import pytest

from stages.runtime.credentials import credential_in, refuse_credentials, without_credentials
from stages.runtime.errors import UserError
from stages.runtime.section import read_params_file

SECRET = "pLaNtEd-7"


@pytest.mark.parametrize(
    ("url", "kind", "public"),
    [
        (f"http://bob:{SECRET}@host:8080/a.py", "a password", "http://host:8080/a.py"),
        (f"https://{SECRET}@host/a.py", "a password", "https://host/a.py"),
        (f"simplecache::ftp://bob:{SECRET}@host/a", "a password", "simplecache::ftp://host/a"),
        (f"zip://*.csv::https://host/a.zip?sig={SECRET}", "the parameter `sig`", "zip://*.csv::https://host/a.zip"),
        (
            f"https://b.s3.amazonaws.com/a?X-Amz-Date=1&X-Amz-Signature={SECRET}",
            "the parameter `X-Amz-Signature`",
            "https://b.s3.amazonaws.com/a",
        ),
        (f"https://host/a?GoogleAccessId=x&Signature={SECRET}", "the parameter `Signature`", "https://host/a"),
        (
            f"https://a.blob.core.windows.net/c/a?sv=1&sig={SECRET}",
            "the parameter `sig`",
            "https://a.blob.core.windows.net/c/a",
        ),
        (f"https://host/a?key={SECRET}", "the parameter `key`", "https://host/a"),
        (f"https://host/a#accessToken={SECRET}", "the parameter `accessToken`", "https://host/a"),
    ],
)
def test_a_credential_in_a_url_is_found_and_taken_out(url: str, kind: str, public: str) -> None:
    text = f"take {url} or leave it"

    assert credential_in(text) == kind
    assert without_credentials(text) == f"take {public} or leave it"
    with pytest.raises(UserError) as refused:
        refuse_credentials("params.yaml", {"collect": {"sources": [{"globs": ["a", url]}]}})
    assert str(refused.value).startswith(
        f"params.yaml: collect.sources.0.globs.1: the URL holds {kind}, which logs, records"
    )
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a?.py",
        "s3://bucket/[0-9]*/me@example.org.txt",
        "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/name/me@x",
        "abfs://container@account.dfs.core.windows.net/a/*.py",
        "ssh://git@host/owner/name.git",
        "sftp://me@host/a",
        "hf://datasets/owner/name@main/a.parquet",
        "https://host:8080/@me/a?download=1&versionId=a1b2&tokenizer=gpt2",
        "https://[::1]:8080/a@b",
        "zip://*.csv::https://host/a.zip",
        '{"a":"https://host","mail":"me:you@example.org"}',
        "postgresql://me:${PASSWORD}@host/a",
        "git@host:owner/name.git",
        "https://host/a?sig=",
        "key=value",
    ],
)
def test_a_url_without_one_stays_as_it_is(text: str) -> None:
    assert credential_in(text) is None
    assert without_credentials(text) == text
    refuse_credentials("params.yaml", {"a": [text, 1, None]})


def test_a_file_of_parameters_with_one_anywhere_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(f"publish:\n  description: see https://bob:{SECRET}@host/\nmine:\n  http://u:{SECRET}@h: 1\n")

    with pytest.raises(UserError) as refused:
        read_params_file(path)

    assert [line.split(": ")[1] for line in str(refused.value).splitlines()] == ["publish.description", "mine.http://h"]
    assert SECRET not in str(refused.value)
