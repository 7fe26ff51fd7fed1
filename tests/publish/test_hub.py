"""What a Hub holds after publications, failures and kills. A Hub on the loopback interface, and the real client."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.revision.execution import Execution
from stages.formats.revision.provenance import SIGNATURE_FILE, Receipt
from stages.publish import hub as publishing
from stages.publish.hub import main, publish_to_hub
from stages.publish.params import PublishParams
from stages.publish.revision import Gate, Revision, published_files
from stages.runtime.errors import EXIT_UNAVAILABLE, RefusedError, UnavailableError, UserError
from tests.fake_hub import READER, WRITER, Fault, Hub, Repository
from tests.formats.revision.records import SESSION
from tests.publish.publishing import train_anew
from tests.publish.to_hub import NAME, publish, use
from tests.small_project import ROOT
from tests.trained_project import write_sections

DATA = "me/data"
RUN = "0123456789abcdef"
BRANCH = f"run-{RUN}"


@pytest.fixture(autouse=True)
def client(hub: Hub, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(hub, monkeypatch)


def titles(hub: Hub, branch: str) -> list[str]:
    """The commits of a branch after the first, which the Hub makes, in order."""
    return hub.repositories[NAME].git("log", "--reverse", "--format=%s", branch).decode().splitlines()[1:]


def require_complete(hub: Hub, receipt: Receipt) -> None:
    """Main has the revision and nothing else, by one commit, which the tag names."""
    repository = hub.repositories[NAME]
    assert titles(hub, "main") == [f"Publish {receipt.revision}"]
    assert repository.refs("tags")[str(receipt.revision)] == receipt.commit == repository.resolve("main")
    record = {"provenance.json", "record/note", "record/reports/evaluate.json"}
    assert set(repository.tree("main")) == {".gitattributes", *record, *published_files()}


def with_steps(*numbers: int) -> None:
    """Give the model exported steps, and the record of the run that trained it."""
    for number in numbers:
        train_anew(number)
        shutil.copytree(MODEL, f"exported/step-{number:08d}", ignore=shutil.ignore_patterns("tokenizer*", "step-*"))
    train_anew(0)
    shutil.copytree("exported", MODEL, dirs_exist_ok=True)
    Execution(weights_sha256=weights_sha256(), fingerprint=RUN + "0" * 16, sessions=[SESSION], checkpoints={}).write()


def test_a_private_repository_gets_one_commit_and_a_tag_and_a_second_publication_sends_nothing(hub: Hub) -> None:
    first = publish()

    assert hub.repositories[NAME].private
    require_complete(hub, first)
    assert hub.repositories[NAME].refs("heads").keys() == {"main"}
    assert not [agent for agent in hub.user_agents if "torch" in agent]  # no telemetry
    before = hub.requests("PUT|/commit/")
    assert publish(record="of another day") == first
    assert hub.requests("PUT|/commit/") == before


def test_main_follows_what_is_published_also_back_to_an_earlier_revision_and_keeps_files_of_others(hub: Hub) -> None:
    hub.repositories[NAME] = Repository(hub.folder / NAME, private=True)
    hub.repositories[NAME].commit("main", {"README.md": b"# mine", "paper.pdf": b"pdf"}, [], "by hand")
    receipts = []
    for seed in (0, 1, 0):
        train_anew(seed)
        if seed:
            (MODEL / "vocabulary.txt").write_text("of the second revision alone\n")
        receipts.append(publish())

        assert published_files().keys() <= hub.repositories[NAME].tree("main").keys()
        assert ("vocabulary.txt" in hub.repositories[NAME].tree("main")) == bool(seed)

    assert titles(hub, "main") == ["by hand", *(f"Publish {receipt.revision}" for receipt in receipts)]
    assert "paper.pdf" in hub.repositories[NAME].tree("main")
    assert receipts[0].revision == receipts[2].revision
    assert hub.repositories[NAME].refs("tags") == {str(receipt.revision): receipt.commit for receipt in receipts[:2]}


def test_each_exported_step_is_a_commit_on_the_branch_of_its_run_with_a_tag(hub: Hub) -> None:
    with_steps(100, 200)
    receipt = publish()

    repository = hub.repositories[NAME]
    assert receipt.run == RUN
    assert [title.partition(" of run ")[0] for title in titles(hub, BRANCH)] == ["step-00000100", "step-00000200"]
    assert {tag: repository.refs("tags")[tag] for tag in repository.refs("tags") if "step" in tag} == {
        f"{receipt.revision}-step-{number:08d}": commit for number, commit in receipt.steps.items()
    }
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    for commit in receipt.steps.values():
        assert set(repository.tree(commit)) == {".gitattributes", *names}

    Path("data/card/README.md").write_text("---\nlicense: mit\n---\n# Another card\n")
    assert publish().steps == receipt.steps  # whose tags get the new revision's name too
    shutil.copyfile(MODEL / "model.safetensors", MODEL / "step-00000200/model.safetensors")
    assert publish().steps[100] == receipt.steps[100]
    assert [title.partition(" of run ")[0] for title in titles(hub, BRANCH)][2:] == ["step-00000200"]


@pytest.mark.parametrize("kind", ["500", "lost"])
def test_an_error_or_a_kill_at_any_request_is_made_up_for_by_the_same_command(hub: Hub, kind: str) -> None:
    """On the Hub a kill looks like a connection that breaks: before the request has its effect, or after it."""
    with_steps(100)
    publish()
    writing = [line for line in hub.log if line.startswith(("POST", "PUT"))]
    assert {line.split("/")[5] for line in writing if "/api/models" in line} >= {"branch", "commit", "tag"}

    for number, line in enumerate(writing):
        hub.repositories.clear()
        hub.objects.clear()
        shutil.rmtree(hub.folder / NAME)
        hub.faults[:] = [Fault("^(POST|PUT)", "none", times=number), Fault("^(POST|PUT)", kind)]
        try:
            receipt = publish()
        except UnavailableError:
            receipt = publish()

        assert hub.faults[1].times == 0, line
        require_complete(hub, receipt)
        assert len(titles(hub, BRANCH)) == 1, line


@pytest.mark.parametrize("branch", ["main", BRANCH])
def test_a_branch_that_somebody_else_moved_meanwhile_is_not_overwritten(hub: Hub, branch: str) -> None:
    with_steps(100)
    hub.faults.append(Fault(f"POST .*/commit/{branch}", "race"))

    with pytest.raises(UnavailableError, match=f"^publish.repository = {NAME}, as the user of HF_TOKEN: "):
        publish()

    assert publish().revision == publish().revision
    assert len(titles(hub, branch)) == 2
    assert ("OTHER.md" in hub.repositories[NAME].tree("main")) == (branch == "main")


def test_a_worse_model_or_one_without_a_known_predecessor_is_refused_and_nothing_is_sent(hub: Hub) -> None:
    publish(2.0)
    train_anew(1)
    before = hub.requests("PUT|/commit/")

    with pytest.raises(RefusedError, match=f"^{NAME}: the model has 3 bits per byte, main has 2; "):
        publish(3.0)
    hub.repositories[NAME].commit("main", {}, ["provenance.json", "record/reports/evaluate.json"], "by hand")
    with pytest.raises(RefusedError, match="main holds a model without an evaluation to compare with"):
        publish(1.0)

    assert hub.requests("PUT|/commit/") == before
    publish(3.0, gate__allow_worse=True)
    assert len(titles(hub, "main")) == 3


def test_a_signature_that_is_made_later_is_added(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def signed(revision: Revision, params: PublishParams, gate: Gate) -> Receipt:
        signature = Path("../signature")
        signature.write_text("signed\n")
        revision.files[SIGNATURE_FILE] = signature
        return publish_to_hub(revision, params, gate)

    publish()
    monkeypatch.setattr("tests.publish.to_hub.publish_to_hub", signed)
    hub.faults.append(Fault("DELETE /api/.+/tag/", "lost"))
    with pytest.raises(UnavailableError):
        publish()
    receipt = publish()

    repository = hub.repositories[NAME]
    assert SIGNATURE_FILE in repository.tree("main")
    assert repository.refs("tags") == {receipt.revision: receipt.commit}
    assert receipt.commit == repository.resolve("main")
    publish()
    assert len(titles(hub, "main")) == 2


def check(**changes: str | None) -> None:
    """`python -m stages.publish.hub`, before hours of training."""
    sections = {"repository": NAME, "dataset_repository": DATA} | changes
    write_sections(Path(), **{f"publish__{name}": value for name, value in sections.items()})
    main()


def test_the_check_makes_private_and_empty_repositories_and_may_do_so_again(hub: Hub) -> None:
    check()
    check()

    assert hub.repositories.keys() == {NAME, f"datasets/{DATA}"}
    for repository in hub.repositories.values():
        assert repository.private
        assert repository.commit_count("main") == 1  # the Hub's own


@pytest.mark.parametrize("repository", [NAME, None])
def test_a_credential_in_the_code_is_refused_before_anything_is_made(hub: Hub, repository: str | None) -> None:
    Path("stages").mkdir(exist_ok=True)
    Path("stages/mine.py").write_text(f"token = 'hf_{'AbCdEfGhIj' * 4}'\n")

    with pytest.raises(UserError, match=r"^stages/mine\.py: has what looks like a credential"):
        check(repository=repository, dataset_repository=None)
    assert not hub.repositories


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("", f"publish.repository = {NAME}: no token; put one with write access in HF_TOKEN"),
        (READER, f"publish.repository = {NAME}, as the user of HF_TOKEN: access is refused: 403 Forbidden"),
    ],
)
def test_a_token_without_write_access_is_an_error_also_if_the_repository_exists(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str, message: str
) -> None:
    hub.repositories[NAME] = Repository(hub.folder / NAME, private=True)
    use(hub, monkeypatch, token)

    with pytest.raises(UserError, match=re.escape(message)):
        check()


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("403", UserError, f"^publish.dataset_repository = {DATA}, as the user of HF_TOKEN: "),
        ("503", UnavailableError, "the Hub does not answer"),
    ],
)
def test_a_data_set_that_cannot_be_made_is_named_by_its_parameter(
    hub: Hub, fault: str, error: type[UserError], message: str
) -> None:
    hub.faults += [Fault("POST /api/repos/create", "none"), Fault("POST /api/repos/create", fault, times=99)]

    with pytest.raises(error, match=message):
        check()


def test_a_data_set_on_the_hub_with_a_model_in_a_folder_is_refused() -> None:
    with pytest.raises(UserError, match="dataset_repository is on the Hub, but the model goes to a folder"):
        check(repository=None)


def test_nothing_private_goes_to_a_public_repository(hub: Hub) -> None:
    hub.repositories[NAME] = Repository(hub.folder / NAME, private=False)

    with pytest.raises(UserError, match=f"publish.private = true, but {NAME} exists and is public: nothing was sent"):
        publish()

    assert hub.requests("PUT|/commit/") == 0


def test_a_hub_that_is_silent_is_given_up_after_the_requests_time_limit(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.faults.append(Fault("/commit/main", "silence"))

    with monkeypatch.context() as impatient:
        impatient.setattr(publishing, "REQUEST_SECONDS", 0.5)
        while hub.faults[0].times:  # on a busy machine a request before it may take as long
            with pytest.raises(UnavailableError):
                publish()

    require_complete(hub, publish())


def environment(hub: Hub, **changes: str) -> dict[str, str]:
    """Nothing of this machine's but the path of Python."""
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


def loaded(hub: Hub, code: str, *arguments: str) -> str:
    """What a program of a user prints that loads from the Hub."""
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, env=environment(hub), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_what_was_published_loads_by_its_name_its_tag_and_its_step(hub: Hub) -> None:
    with_steps(100)
    receipt = publish()
    code = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "for revision in ('main', *sys.argv[1:]):\n"
        "    model = AutoModelForCausalLM.from_pretrained('me/model', revision=revision)\n"
        "    tokenizer = AutoTokenizer.from_pretrained('me/model', revision=revision)\n"
        "    print(model.num_parameters(), tokenizer.eos_token)\n"
    )

    said = loaded(hub, code, str(receipt.revision), f"{receipt.revision}-step-00000100").splitlines()

    assert len(said) == 3
    assert len(set(said)) == 1
    assert said[0].endswith(" <|endoftext|>")


def test_large_files_go_by_xet_and_a_storage_that_cannot_be_reached_ends_in_one_message(hub: Hub) -> None:
    code = "from tests.publish import to_hub; from stages.runtime.stage import run_stage; run_stage(to_hub.publish)"
    xet = {"HF_HUB_DISABLE_XET": "", "HF_XET_CLIENT_RETRY_MAX_DURATION": "1s", "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1"}
    storage, hub.xet_storage = hub.xet_storage, "http://127.0.0.1:9"
    command, own = [sys.executable, "-c", code], environment(hub, **xet)
    failed = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert failed.returncode == EXIT_UNAVAILABLE
    assert failed.stderr.startswith(f"error: publish.repository = {NAME}, as the user of HF_TOKEN: ")
    assert len(failed.stderr.splitlines()) == 1
    assert titles(hub, "main") == []

    hub.xet_storage = storage
    subprocess.run(command, env=own, check=True)
    assert hub.requests("PUT /") == 0
    assert any(hub.xet_folder.rglob("*"))
    assert len(titles(hub, "main")) == 1
