"""The real client in processes of its own, against a Hub on the loopback interface."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from stages.formats.revision.provenance import is_observed
from stages.runtime.entry import EXIT_REFUSED, EXIT_UNAVAILABLE
from tests.fake_hub import READER, WRITER, Fault, Hub, Repository
from tests.forked import PYTHON, run_forked
from tests.hub_client import with_short_waits
from tests.small_project import ROOT
from tests.trained_project import write_model, write_sections

NAME = "me/model"
RECEIPT = Path("published/tiny/receipt.json")
COMMIT_TO_BRANCH = "POST /api/models/me/model/commit/run-"
PUBLISH = with_short_waits(
    "stages.publish", "from stages.publish.hub import client; client.FIRST_WAIT_SECONDS = 0.01  # from 0.5"
)


@pytest.fixture(autouse=True)
def repository_named(project: Path) -> None:
    write_sections(project, publish__repository=NAME)


def environment(hub: Hub, **changes: str) -> dict[str, str]:
    """Nothing of this machine's but the path of Python. Large files go by LFS; `HF_HUB_DISABLE_XET=""` takes Xet."""
    settings = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": WRITER,
        "HF_HOME": str(hub.folder.parent / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": os.environ["PATH"],
    }
    return settings | changes


def publish(hub: Hub, **changes: str) -> subprocess.CompletedProcess[str]:
    return run_forked(PYTHON, PUBLISH[1:], Path.cwd(), environment(hub, **changes))


def published(hub: Hub, **changes: str) -> dict[str, str]:
    """The receipt of a run that succeeds."""
    result = publish(hub, **changes)
    assert result.returncode == 0, result.stdout + result.stderr
    receipt: dict[str, str] = json.loads(RECEIPT.read_text())
    return receipt


def named(tree: Iterable[str]) -> set[str]:
    """The files of a commit without those that are observed, such as the record, of which there must be some."""
    assert {"provenance.json", "record/params.yaml"} <= set(tree)
    return {path for path in tree if not is_observed(path)}


def require_complete(repository: Repository, receipt: dict[str, str]) -> None:
    """Branch, tag and main each hold all files, by one commit each after the first one."""
    branch = f"run-{receipt['revision']}"
    assert repository.refs("tags") == {receipt["revision"]: receipt["commit"]}
    assert repository.resolve(branch) == receipt["commit"]
    for name in (branch, "main"):
        assert named(repository.tree(name)) == {".gitattributes", *receipt["sha256"]}
        assert repository.commit_count(name) == 2


def test_a_repository_is_made_private_and_gets_branch_tag_and_main(hub: Hub) -> None:
    receipt = published(hub)

    repository = hub.repositories[NAME]
    assert repository.private
    assert receipt["location"] == NAME
    require_complete(repository, receipt)
    order = [line for line in hub.log if re.match("POST /api/models/.*/(branch|commit|tag)/", line)]
    assert [line.split("/")[5] for line in order] == ["branch", "commit", "tag", "commit"]
    assert order[-1].endswith("/commit/main")


def test_what_was_published_loads_by_its_name_and_by_its_tag(hub: Hub) -> None:
    receipt = published(hub)
    code = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "for revision in ('main', sys.argv[1]):\n"
        "    model = AutoModelForCausalLM.from_pretrained('me/model', revision=revision)\n"
        "    tokenizer = AutoTokenizer.from_pretrained('me/model', revision=revision)\n"
        "    print(model.num_parameters(), tokenizer.eos_token)\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", code, receipt["revision"]],
        env=environment(hub),
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert len(set(result.stdout.splitlines())) == 1
    assert result.stdout.endswith("<|endoftext|>\n")


def test_nothing_is_published_twice(hub: Hub) -> None:
    first = published(hub)
    RECEIPT.unlink()
    before = len(hub.log)

    assert published(hub) == first

    again = hub.log[before:]
    assert not [line for line in again if line.startswith("PUT") or "/commit/" in line or "/tag/" in line]
    require_complete(hub.repositories[NAME], first)


def test_a_second_revision_replaces_the_first_on_main_and_both_keep_their_tags(project: Path, hub: Hub) -> None:
    first = published(hub)
    write_model(project, seed=1)

    second = published(hub)

    repository = hub.repositories[NAME]
    assert repository.refs("tags") == {receipt["revision"]: receipt["commit"] for receipt in (first, second)}
    assert repository.tree("main") == repository.tree(second["commit"])
    assert repository.tree("main") != repository.tree(first["commit"])


def test_main_loses_files_of_the_revision_before_and_keeps_those_of_others(project: Path, hub: Hub) -> None:
    (project / "model/vocabulary.txt").write_text("old\n")
    published(hub)
    hub.repositories[NAME].commit("main", {"NOTES.md": b"by hand"}, [], "by hand")
    (project / "model/vocabulary.txt").unlink()

    result = publish(hub)

    assert result.returncode == 0, result.stderr
    assert f"{NAME}: main keeps files that were not published from here: NOTES.md" in result.stdout
    main, revision = hub.repositories[NAME].tree("main"), json.loads(RECEIPT.read_text())
    assert named(main) == {".gitattributes", "NOTES.md", *revision["sha256"]}
    assert "NOTES.md" not in hub.repositories[NAME].tree(revision["revision"])


def test_it_is_said_that_a_card_that_was_edited_on_the_hub_is_replaced(project: Path, hub: Hub) -> None:
    published(hub)
    hub.repositories[NAME].commit("main", {"README.md": b"# edited on the Hub's page"}, [], "by hand")
    write_model(project, seed=1)

    result = publish(hub)

    assert result.returncode == 0, result.stderr
    assert f"{NAME}: main had its own README.md: replaced, still in the repository's history\n" in result.stdout


def test_the_first_publication_to_a_repository_with_files_keeps_them_and_says_what_it_replaces(hub: Hub) -> None:
    hub.repositories[NAME] = Repository(hub.folder / NAME, private=True)
    hub.repositories[NAME].commit("main", {"README.md": b"# mine", "paper.pdf": b"pdf"}, [], "by hand")

    result = publish(hub)

    assert result.returncode == 0, result.stderr
    assert f"{NAME}: main keeps files that were not published from here: paper.pdf" in result.stdout
    assert f"{NAME}: main had its own README.md: replaced, still in the repository's history" in result.stdout
    assert "paper.pdf" in hub.repositories[NAME].tree("main")


def test_a_model_that_others_have_published_is_not_replaced_unless_allowed(hub: Hub) -> None:
    repository = hub.repositories[NAME] = Repository(hub.folder / NAME, private=True)
    before = repository.commit("main", {"pytorch_model.bin": b"theirs"}, [], "by hand")

    refused = publish(hub)

    assert refused.returncode == EXIT_REFUSED
    assert "main holds a model without an evaluation to compare with" in refused.stderr
    assert repository.refs("heads") == {"main": before}
    write_sections(Path(), publish__repository=NAME, publish__gate__allow_worse=True)
    published(hub)


def test_a_worse_model_does_not_move_main_and_nothing_is_sent(project: Path, hub: Hub) -> None:
    first = published(hub)
    write_model(project, seed=1)
    report = Path("reports/evaluate.json")
    report.write_text(json.dumps(json.loads(report.read_text()) | {"bits_per_byte": 99.0}))
    uploads = hub.requests("PUT|commit/")

    for _ in range(2):
        result = publish(hub)
        assert result.returncode == EXIT_REFUSED
        assert "the model has 99 bits per byte, main has " in result.stderr

    assert hub.requests("PUT|commit/") == uploads
    require_complete(hub.repositories[NAME], first)


@pytest.mark.parametrize(
    "pattern",
    [
        "POST /api/repos/create",
        "GET .*/auth-check",
        "GET .*/refs",
        "POST .*/branch/",
        "GET .*/tree/",
        "POST .*/preupload/",
        "POST .*/objects/batch",
        "PUT /",
        COMMIT_TO_BRANCH,
        "POST .*/tag/",
        "POST .*/commit/main",
    ],
)
def test_a_transient_failure_is_retried_and_makes_one_commit_a_branch(hub: Hub, pattern: str) -> None:
    hub.faults.append(Fault(pattern, "500"))

    receipt = published(hub)

    assert hub.faults[0].times == 0
    require_complete(hub.repositories[NAME], receipt)


@pytest.mark.parametrize(
    "pattern", ["POST /api/repos/create", "POST .*/branch/", COMMIT_TO_BRANCH, "POST .*/tag/", "POST .*/commit/main"]
)
def test_an_answer_that_is_lost_makes_no_second_commit(hub: Hub, pattern: str) -> None:
    hub.faults.append(Fault(pattern, "lost"))

    receipt = published(hub)

    assert hub.faults[0].times == 0
    require_complete(hub.repositories[NAME], receipt)


@pytest.mark.parametrize("pattern", ["PUT /", COMMIT_TO_BRANCH])
def test_an_upload_whose_connection_breaks_is_retried(hub: Hub, pattern: str) -> None:
    hub.faults.append(Fault(pattern, "cut"))

    receipt = published(hub)

    assert hub.requests(pattern) >= 2
    require_complete(hub.repositories[NAME], receipt)


@pytest.mark.parametrize("branch", ["run-", "main"])
def test_a_branch_that_moved_meanwhile_is_read_again_before_it_is_written(hub: Hub, branch: str) -> None:
    hub.faults.append(Fault(f"POST /api/models/me/model/commit/{branch}", "race"))

    receipt = published(hub)

    repository = hub.repositories[NAME]
    name = f"run-{receipt['revision']}" if branch == "run-" else "main"
    assert hub.requests(f"POST /api/models/me/model/commit/{branch}") == 2
    assert repository.commit_count(name) == 3
    assert ("OTHER.md" in repository.tree("main")) == (branch == "main")  # of others, so it is kept


def test_a_run_that_failed_continues_where_it_stopped(hub: Hub) -> None:
    hub.faults.append(Fault("POST .*/tag/", "500", times=5))
    assert publish(hub).returncode == EXIT_UNAVAILABLE
    assert not RECEIPT.exists()
    hub.faults.clear()
    commits = hub.requests(COMMIT_TO_BRANCH)

    receipt = published(hub)

    assert hub.requests(COMMIT_TO_BRANCH) == commits
    require_complete(hub.repositories[NAME], receipt)


def test_a_kill_during_the_upload_leaves_main_as_it_was(project: Path, hub: Hub) -> None:
    first = published(hub)
    RECEIPT.unlink()
    write_model(project, seed=1)
    hub.faults.append(Fault("PUT /", "500", times=99))
    before = hub.requests("PUT /")
    child = subprocess.Popen([sys.executable, "-m", "stages.publish"], env=environment(hub), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 180
    while hub.requests("PUT /") == before and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()

    repository = hub.repositories[NAME]
    assert hub.requests("PUT /") > before
    assert repository.tree("main") == repository.tree(first["commit"])
    hub.faults.clear()

    second = published(hub)

    assert repository.tree("main") == repository.tree(second["commit"])


def test_a_hub_that_stays_broken_ends_in_one_message(hub: Hub) -> None:
    hub.faults.append(Fault("POST .*/branch/", "500", times=99))

    result = publish(hub)

    assert result.returncode == EXIT_UNAVAILABLE
    assert result.stderr == (
        f"error: publish.repository = {NAME}: the Hub keeps answering with status 500; run the same command again, "
        "files that arrived are not sent twice\n"
    )
    assert hub.requests("POST .*/branch/") == 5


def test_a_hub_that_cannot_be_reached_is_named_with_its_address(hub: Hub) -> None:
    hub.__exit__()

    result = publish(hub)

    assert result.returncode == EXIT_UNAVAILABLE
    assert f"cannot reach {hub.endpoint}" in result.stderr


def test_content_that_was_changed_under_the_tag_is_noticed(hub: Hub) -> None:
    receipt = published(hub)
    repository = hub.repositories[NAME]
    other = repository.commit("main", {"config.json": b"{}"}, [], "by hand")
    repository.git("update-ref", f"refs/tags/{receipt['revision']}", other)
    RECEIPT.unlink()

    result = publish(hub)

    assert result.returncode == 2
    assert "config.json did not arrive as sent, or was changed there" in result.stderr
    assert not RECEIPT.exists()


def test_without_a_token_nothing_is_tried(hub: Hub) -> None:
    result = publish(hub, HF_TOKEN="")

    assert result.returncode == 2
    assert result.stderr == (
        f"error: publish.repository = {NAME}: no token; put one with write access to it in HF_TOKEN "
        f"({hub.endpoint}/settings/tokens), or set publish.repository to null\n"
    )
    assert hub.log == []


def test_a_token_that_is_stored_on_the_machine_is_not_used(hub: Hub) -> None:
    home = Path(environment(hub)["HF_HOME"])
    home.mkdir()
    (home / "token").write_text(WRITER)

    assert "no token" in publish(hub, HF_TOKEN="").stderr


@pytest.mark.parametrize(("token", "status"), [(READER, 403), ("hf_unknown", 401)])
def test_a_token_without_write_access_is_reported_and_never_shown(hub: Hub, token: str, status: int) -> None:
    result = publish(hub, HF_TOKEN=token)

    assert result.returncode == 2
    assert f"the token in HF_TOKEN may not write there (status {status})" in result.stderr
    assert token not in result.stdout + result.stderr


def test_the_offline_switch_is_named(hub: Hub) -> None:
    result = publish(hub, HF_HUB_OFFLINE="1")

    assert result.returncode == 2
    assert "HF_HUB_OFFLINE is set, so nothing can be published to the Hub" in result.stderr


def test_nothing_private_goes_to_a_public_repository(hub: Hub) -> None:
    hub.repositories[NAME] = Repository(hub.folder / NAME, private=False)

    result = publish(hub)

    assert result.returncode == 2
    assert f"publish.private = true, but {NAME} exists and is public: nothing was sent" in result.stderr
    assert hub.requests("PUT|commit") == 0


def test_the_token_is_in_nothing_that_is_left_behind(project: Path, hub: Hub) -> None:
    published(hub)

    for path in project.rglob("*"):
        assert not path.is_file() or WRITER.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    "pattern",
    ["POST /api/repos/create", "GET .*/refs", "GET .*/tree/", "POST .*/branch/", COMMIT_TO_BRANCH, "POST .*/tag/"],
)
def test_a_login_page_that_answers_instead_of_the_hub_is_a_transient_failure(hub: Hub, pattern: str) -> None:
    hub.faults.append(Fault(pattern, "portal"))

    require_complete(hub.repositories[NAME], published(hub)) if hub.repositories else published(hub)

    assert hub.faults[0].times == 0


def test_a_network_that_asks_to_log_in_is_named(hub: Hub) -> None:
    hub.faults.append(Fault("POST", "portal", times=99))

    result = publish(hub)

    assert result.returncode == EXIT_UNAVAILABLE
    assert f"{hub.endpoint} does not answer as a Hub does (a login page of the network?)" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_no_telemetry_is_sent_and_no_variable_is_needed_for_that(hub: Hub) -> None:
    published(hub)

    assert [agent for agent in hub.user_agents if "torch" in agent or "agent/" in agent] == []


def test_a_server_that_never_answers_is_given_up(hub: Hub) -> None:
    hub.faults.append(Fault(COMMIT_TO_BRANCH, "silence"))
    code = (
        "from stages.publish import __main__; from stages.publish.hub import client\n"
        "client.REQUEST_SECONDS = 1.0; __main__.main()"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], env=environment(hub), capture_output=True, text=True, check=False, timeout=100
    )

    assert result.returncode == 0, result.stderr
    assert "a call to the Hub failed (ReadTimeout); retrying" in result.stdout
    require_complete(hub.repositories[NAME], json.loads(RECEIPT.read_text()))


def test_a_publication_ends_after_its_time_limit_whatever_it_waits_for(hub: Hub) -> None:
    hub.faults.append(Fault("GET .*/refs", "silence", times=99))
    code = (
        "from stages.publish import __main__; from stages.publish.hub import client\n"
        "from stages.runtime.entry import run_stage\n"
        "client.BASE_SECONDS = 3.0; run_stage(__main__.main)"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], env=environment(hub), capture_output=True, text=True, check=False, timeout=50
    )

    assert result.returncode == EXIT_UNAVAILABLE
    assert "not finished after 0 minutes; run the same command again" in result.stderr


XET = {"HF_HUB_DISABLE_XET": "", "HF_XET_CLIENT_RETRY_MAX_DURATION": "1s", "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1"}


def test_the_default_upload_path_of_the_client_is_xet_and_works(hub: Hub) -> None:
    receipt = published(hub, **XET)

    assert hub.requests("xet-write-token") >= 1
    assert hub.requests("PUT /") == 0
    assert any(hub.xet_folder.rglob("*"))
    require_complete(hub.repositories[NAME], receipt)


@pytest.mark.parametrize("kind", ["500", "cut"])
def test_a_failure_of_xets_token_is_retried(hub: Hub, kind: str) -> None:
    hub.faults.append(Fault("xet-write-token", kind, times=3))

    receipt = published(hub, **XET)

    assert hub.faults[0].times == 0
    require_complete(hub.repositories[NAME], receipt)


def test_xet_storage_that_cannot_be_reached_ends_in_one_message(hub: Hub) -> None:
    hub.xet_storage = "http://127.0.0.1:9"

    result = publish(hub, **XET)

    assert result.returncode == EXIT_UNAVAILABLE
    assert f"error: publish.repository = {NAME}: cannot reach {hub.endpoint} or its storage (" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "main" in hub.repositories[NAME].refs("heads")
    assert hub.repositories[NAME].commit_count("main") == 1


def test_a_token_server_that_stays_broken_ends_in_one_message(hub: Hub) -> None:
    hub.faults.append(Fault("xet-write-token", "500", times=99))

    result = publish(hub, **XET)

    assert result.returncode == EXIT_UNAVAILABLE
    assert "500 Internal Server Error" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_refusal_of_the_hub_keeps_its_reason_in_one_line(hub: Hub) -> None:
    hub.faults.append(Fault(COMMIT_TO_BRANCH, "400", times=99))

    result = publish(hub)

    assert result.returncode == 2
    assert "the Hub refused with status 400" in result.stderr
    assert "ordered by the test in two lines" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("pattern", ["POST /api/repos/create", "POST .*/branch/", "POST .*/tag/"])
def test_a_conflict_with_another_write_is_not_taken_for_existing(hub: Hub, pattern: str) -> None:
    hub.faults.append(Fault(pattern, "409"))

    require_complete(hub.repositories[NAME], published(hub)) if hub.repositories else published(hub)

    assert hub.faults[0].times == 0
