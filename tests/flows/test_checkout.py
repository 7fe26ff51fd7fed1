"""The checkout of a deployment: what it takes from each side, and that nothing computed is lost."""

import shutil
from pathlib import Path

import pytest

from flows.checkout import (
    bring_to_commit,
    bring_up_to_date,
    commit_results,
    push_commits,
    require_names,
)
from stages.runtime.errors import UnavailableError, UserError
from tests.flows.toy import add_submodule, git, make_toy
from tests.small_project import ROOT

DVC_YAML = """\
stages:
  one:
    cmd: sh one.sh
    deps: [one.sh]
    outs: [one.txt]
    metrics: [scores/one.json: {cache: false}]
"""


def lock(remarks: str) -> str:
    """A dvc.lock that says something."""
    return "schema: '2.0'\n" + "".join(f"# {line}\n" for line in remarks.splitlines())


def commit(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "change")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The bare repository that a deployment runs; `work` next to it is a person's clone."""
    work = make_toy(tmp_path / "work", DVC_YAML)
    commit(work, dvc_lock=lock("same\n" * 9), scores__one_json="1\n", one_sh="a\n")
    git(work, "branch", "-M", "main")
    git(tmp_path, "clone", "-q", "--bare", "work", "origin.git")
    git(work, "remote", "add", "origin", str(tmp_path / "origin.git"))
    return tmp_path / "origin.git"


def checkout(source: Path) -> Path:
    folder = source.parent / "checkout"
    bring_up_to_date(folder, str(source), "main", "results")
    return folder


def at_origin(source: Path, path: str, branch: str = "results") -> str:
    return git(source, "show", f"{branch}:{path}")


def test_results_come_from_the_last_run_and_everything_else_from_the_branch_that_is_run(source: Path) -> None:
    folder, work = checkout(source), source.parent / "work"
    (folder / "dvc.lock").write_text(lock("computed\n"))
    (folder / "scores/one.json").write_text("2\n")
    first = commit_results(folder, "Results of one", "results")
    commit(work, dvc_lock=lock("theirs\n"), scores__one_json="3\n", one_sh="b\n")
    git(work, "push", "-q", "origin", "main")

    bring_up_to_date(folder, str(source), "main", "results")

    assert (folder / "dvc.lock").read_text() == lock("computed\n")
    assert (folder / "scores/one.json").read_text() == "2\n"
    assert (folder / "one.sh").read_text() == "b\n"
    (folder / "dvc.lock").write_text(lock("second\n"))
    second = commit_results(folder, "Results of two", "results")
    assert git(folder, "rev-parse", f"{second}^1", f"{second}^2").split() == [first, git(work, "rev-parse", "main")]


def test_the_next_run_pushes_what_could_not_be_pushed_and_overrides_do_not_stick(source: Path) -> None:
    work = source.parent / "work"
    commit(work, params_yaml="steps: 1\n")
    git(work, "push", "-q", "origin", "main")
    folder = checkout(source)
    (folder / "params.yaml").write_text("steps: 1000\n")
    assert commit_results(folder, "Results with overrides", "results")
    away = source.rename(source.with_name("away"))
    with pytest.raises(UnavailableError):
        push_commits(folder, "results")
    away.rename(source)
    bring_up_to_date(folder, str(source), "main", "results")
    push_commits(folder, "results")
    assert at_origin(source, "params.yaml") == "steps: 1000"

    bring_up_to_date(folder, str(source), "main", "results")

    assert (folder / "params.yaml").read_text() == "steps: 1\n"


def test_what_a_failed_run_left_gives_way(source: Path) -> None:
    folder, work = checkout(source), source.parent / "work"
    (folder / "scores/two.json").write_text("left\n")
    (folder / "one.sh").write_text("left\n")
    (folder / ".git/index.lock").touch()
    commit(work, scores__two_json="theirs\n")
    git(work, "push", "-q", "origin", "main")

    bring_up_to_date(folder, str(source), "main", "results")

    assert (folder / "scores/two.json").read_text() == "theirs\n"
    assert (folder / "one.sh").read_text() == "a\n"


def test_a_push_after_another_machine_is_refused_and_the_next_run_starts_from_its_results(source: Path) -> None:
    folder = checkout(source)
    (folder / "dvc.lock").write_text(lock("mine\n"))
    commit_results(folder, "Results of one", "results")
    work = source.parent / "work"
    commit(work, dvc_lock=lock("theirs\n"))
    git(work, "push", "-q", "origin", "HEAD:results")

    with pytest.raises(UnavailableError):
        push_commits(folder, "results")
    bring_up_to_date(folder, str(source), "main", "results")
    push_commits(folder, "results")  # a run that changed nothing

    assert (folder / "dvc.lock").read_text() == lock("theirs\n")
    (folder / "dvc.lock").write_text(lock("mine\n"))
    commit_results(folder, "Results of two", "results")
    push_commits(folder, "results")
    assert at_origin(source, "dvc.lock") + "\n" == lock("mine\n")


def test_it_has_the_files_of_submodules(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_submodule(source.parent / "work", "corpus/texts")
    git(source.parent / "work", "push", "-q", "origin", "main")

    with pytest.raises(UnavailableError, match=r"git submodule: .*'file' not allowed"):  # by the user's own git
        checkout(source)
    for key, value in {"COUNT": "1", "KEY_0": "protocol.file.allow", "VALUE_0": "always"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{key}", value)

    assert (checkout(source) / "corpus/texts/text.txt").read_text() == "of the submodule"


@pytest.mark.parametrize("data", ["corpus", "evaluation"])
def test_git_converts_no_line_ends_of_data_although_a_project_asks_for_it_elsewhere(source: Path, data: str) -> None:
    work = source.parent / "work"
    (work / data / "mine").mkdir(parents=True)
    shutil.copy(ROOT / data / ".gitattributes", work / data)
    (work / ".gitattributes").write_text("* text=auto\n")
    (work / data / "mine/a.txt").write_bytes(b"one\r\ntwo\r\n")
    commit(work)
    git(work, "push", "-q", "origin", "main")

    assert (checkout(source) / data / "mine/a.txt").read_bytes() == b"one\r\ntwo\r\n"


def test_git_converts_no_line_ends_of_other_files_although_its_user_asks_for_it(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, asked = source.parent / "work", source.parent / "gitconfig"
    shutil.copy(ROOT / ".gitattributes", work)
    (work / "labeled.jsonl").write_bytes(b'{"text": "one"}\n')
    commit(work)
    git(work, "push", "-q", "origin", "main")
    asked.write_text("[core]\nautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(asked))

    assert (checkout(source) / "labeled.jsonl").read_bytes() == b'{"text": "one"}\n'


def test_a_run_that_changed_nothing_pushes_nothing(source: Path) -> None:
    folder = checkout(source)

    assert commit_results(folder, "Results of one", "results") is None
    push_commits(folder, "results")

    assert "results" not in git(source, "branch", "--list", "results")


def test_only_outputs_that_dvc_does_not_cache_are_committed(source: Path) -> None:
    folder = checkout(source)
    (folder / "scores/one.json").write_text("4\n")
    assert commit_results(folder, "Results", "results")

    (folder / "one.sh").write_text("changed by a stage\n")
    with pytest.raises(UserError, match=r"one.sh changed during the run but are not results"):
        commit_results(folder, "Results", "results")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("work", "a clone that was not made by a deployment"),
        ("copy", r"has files of its own \(one\.sh\); name a new or empty folder"),
    ],
)
def test_a_folder_of_the_users_is_refused_and_left_as_it_is(source: Path, folder: str, message: str) -> None:
    mine = source.parent / folder
    (mine / ".parrotflow").mkdir(parents=True)
    (mine / "one.sh").write_text("mine\n")

    with pytest.raises(UserError, match=message):
        bring_up_to_date(mine, str(source), "main", "results")

    assert (mine / "one.sh").read_text() == "mine\n"
    assert (mine / ".git").exists() == (folder == "work")


@pytest.mark.parametrize("command", ["init", "remote"])
def test_a_first_checkout_that_is_killed_is_made_by_the_next_run(
    source: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def killed_after(folder: Path, *arguments: str, **options: bool) -> str:
        done = git(folder, *arguments)
        if arguments[0] == command:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patched:
        patched.setattr("flows.checkout.git", killed_after)
        with pytest.raises(KeyboardInterrupt):
            checkout(source)

    assert (checkout(source) / "one.sh").read_text() == "a\n"


def test_a_commit_of_any_branch_is_checked_out_and_one_that_was_not_pushed_is_refused(source: Path) -> None:
    folder, work = source.parent / "checkout", source.parent / "work"
    first = git(work, "rev-parse", "HEAD")
    commit(work, one_sh="b\n")
    second = git(work, "rev-parse", "HEAD")

    bring_to_commit(folder, str(source), first)
    assert (folder / "one.sh").read_text() == "a\n"
    with pytest.raises(UserError, match=f"no branch has the commit {second[:12]}; push it there"):
        bring_to_commit(folder, str(source), second)

    git(work, "push", "-q", "origin", "HEAD:refs/heads/other")
    bring_to_commit(folder, str(source), second)
    assert (folder / "one.sh").read_text() == "b\n"


def test_no_message_has_the_token_of_an_address(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://me:a-token@host/x.git"  # git takes it for the folder
    for key, value in {"COUNT": "1", "KEY_0": f"url.{source}.insteadOf", "VALUE_0": address}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{key}", value)

    with pytest.raises(UserError, match=r"^https://host/x\.git: no branch has the commit"):
        bring_to_commit(tmp_path / "checkout", address, "0" * 40)
    with pytest.raises(UserError, match=r"^https://host/x\.git: no branch `other`"):
        bring_up_to_date(tmp_path / "checkout", address, "other", "results")


def test_a_branch_that_git_does_not_take_or_would_take_for_an_option_is_refused() -> None:
    require_names("runs/toy", "prepare@1-a", "corpus/mine.dvc")
    for name in ("--upload-pack=x", "a..b", "runs/my grid", "runs/a.lock"):
        with pytest.raises(UserError, match=f"`{name}`: not a valid branch"):
            require_names(name)
