import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.runtime.entry import (
    UserError,
    credential_in,
    private_state_dir,
    refuse_credentials,
    whole_number,
    without_credentials,
)
from stages.runtime.section import read_params_file
from tests.flows.toy import make_toy, repro
from tests.small_project import ROOT


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


STAGE = """\
stages:
  one:
    cmd: python one.py
    outs: [one.txt]
"""

PROGRAM = """\
from pathlib import Path
from stages.runtime.stage import run_stage

run_stage(lambda: Path("one.txt").touch())
"""


@pytest.mark.parametrize(
    ("begin", "before"),
    [
        (["dvc", "repro"], None),
        (["one.py"], 0o777),
        (["-m", "flows.cli", "why"], None),
    ],
)
def test_whatever_starts_first_closes_the_folder_of_states_to_other_users(
    tmp_path: Path, begin: list[str], before: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_toy(tmp_path / "toy", STAGE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (project / "one.py").write_text(PROGRAM)
    if before is not None:
        (project / ".parrotflow").mkdir()
        (project / ".parrotflow").chmod(before)
    umask = os.umask(0)
    try:
        if begin == ["dvc", "repro"]:
            repro(project)
        else:
            subprocess.run([sys.executable, *begin], cwd=project, check=True)
    finally:
        os.umask(umask)

    assert mode(project / ".parrotflow") == 0o700


def test_the_target_of_a_link_is_left_as_it_is_and_dvcs_part_of_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / ".parrotflow").symlink_to(tmp_path / "shared")

    private_state_dir(tmp_path)

    assert mode(tmp_path / "shared") == 0o777
    assert mode(tmp_path / "shared/dvc") == 0o700


def test_a_variable_that_is_unset_or_empty_leaves_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBER", raising=False)
    assert whole_number("NUMBER", 7) == 7
    monkeypatch.setenv("NUMBER", "")
    assert whole_number("NUMBER", None) is None
    monkeypatch.setenv("NUMBER", "3")
    assert whole_number("NUMBER", 7) == 3


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "\u00b2"])
def test_anything_but_a_whole_number_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBER", value)

    with pytest.raises(UserError, match=f"NUMBER={value}: expected a whole number, 1 or more"):
        whole_number("NUMBER", 7)


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
