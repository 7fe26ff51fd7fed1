"""Data sets of the Hub."""

import http.server
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.collect.sources.hub import Hub
from stages.runtime.errors import UserError
from stages.runtime.section import named_files
from tests.collect.collecting import NO_FIELDS, ORIGIN, collect
from tests.hub_client import with_short_waits
from tests.small_project import ROOT, write_project


def hub(repository: str, split: str = "train") -> dict[str, Any]:
    where = {"kind": "hub", "repository": repository, "configuration": None, "split": split}
    return ORIGIN | where | {"text": ["content"], "fields": NO_FIELDS | {"source": "repo"}, "revision": ""}


def test_a_data_set_is_streamed_row_by_row_and_one_without_the_split_is_refused() -> None:
    Path("set").mkdir()
    pq.write_table(pa.table({"content": ["x = 1\n", "y = 2\n"], "repo": ["a", "b"]}), "set/train.parquet")

    assert sorted((item.source, item.text) for item in collect(hub("set"))) == [("a", "x = 1\n"), ("b", "y = 2\n")]
    with pytest.raises(UserError, match="data set `set` cannot be read"):
        collect(hub("set", split="nosuch"))


@pytest.mark.parametrize("revision", ["", "main", "0" * 39, "0" * 40 + "x"])
def test_a_revision_that_can_move_is_refused_before_anything_is_read(revision: str) -> None:
    with pytest.raises(
        UserError, match=f"has {f'the revision `{revision}`' if revision else 'no revision'}; name a commit"
    ) as refused:
        collect(hub("someone/something") | {"revision": revision})
    assert refused.value.exit_code == 2


class Answers(http.server.BaseHTTPRequestHandler):
    """A Hub that answers everything with one status."""

    status = 503

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "offline", "code", "told"),
    [
        (503, "0", 69, "the Hub does not answer: try again"),
        (403, "0", 2, "access denied"),
        (503, "1", 2, "name its files as a source of kind `files`"),
    ],
)
def test_an_outage_of_the_hub_may_be_retried_and_a_refusal_may_not(
    status: int, offline: str, code: int, told: str
) -> None:
    write_project(Path(), collect__sources=[hub("someone/something") | {"revision": "0" * 40}])
    handler = type("Handler", (Answers,), {"status": status})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(Path("home").absolute())}
        run = subprocess.run(
            with_short_waits("stages.collect"),
            env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": offline} | address,
            capture_output=True,
            text=True,
            check=False,
        )
        server.shutdown()

    assert (run.returncode, len(run.stderr.splitlines()[-1:])) == (code, 1), run.stderr
    assert told in run.stderr.splitlines()[-1]


def test_a_folder_is_a_file_that_dvc_has_to_know_and_a_data_set_of_the_hub_is_none() -> None:
    Path("set").mkdir()

    assert [*named_files("a", Hub.model_validate(hub("set")))] == [("a.repository", "set")]
    assert not [*named_files("a", Hub.model_validate(hub("a/b") | {"revision": "0" * 40}))]
