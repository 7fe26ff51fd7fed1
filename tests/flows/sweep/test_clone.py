"""A clone holds what its cell reads, also after a kill, and changes nothing in the project."""

from pathlib import Path

import pytest
import yaml

from flows.experiments.cells import Cell
from flows.sweep import clone
from stages.runtime.errors import UserError
from tests.flows.sweep.toy_sweep import make_sweep
from tests.flows.toy import add_submodule, commit, dvc, git, repro

CELL = Cell("0123abcd", "toy-a-0123abcd", {"recipe": "a"}, 0, {"model.name": "z", "model.width": 7})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = make_sweep(tmp_path / "toy")
    monkeypatch.chdir(folder)
    return folder


def made(head: str | None = None) -> Path:
    return clone.prepare_clone(CELL, head or clone.head_commit(), clone.CLONES / CELL.id)


def test_it_has_the_commits_files_the_cells_params_with_their_comments_and_the_projects_cache(project: Path) -> None:
    text = (project / "params.yaml").read_text().replace("width: 2", "width: 2  # of the model")
    (project / "params.yaml").write_text(text)

    folder = made(git(project, "rev-parse", "HEAD"))

    assert yaml.safe_load((folder / "params.yaml").read_text())["model"] == {"width": 7, "name": "z", "seed": 0}
    assert "# of the model" in (folder / "params.yaml").read_text()
    assert (folder / "train.py").read_bytes() == (project / "train.py").read_bytes()
    assert Path(dvc(folder, "cache", "dir").strip()) == project / ".dvc/cache"
    assert git(project, "status", "--porcelain") == " M params.yaml"


def test_it_has_the_submodules_of_the_project(project: Path) -> None:
    add_submodule(project, "texts")

    assert (made() / "texts/text.txt").read_text() == "of the submodule"


def test_what_a_kill_left_of_it_is_mended_and_its_checkpoints_stay(project: Path) -> None:
    folder = made()
    (folder / ".git/index.lock").touch()
    (folder / "dvc.lock").touch()
    (folder / ".dvc/tmp").mkdir(exist_ok=True)
    (folder / ".dvc/tmp/rwlock").write_text('{"write": {"/a"')
    (folder / ".parrotflow/checkpoints").mkdir()
    (folder / "params.yaml").write_text("")
    (clone.CLONES / ".0123abcd.partial").mkdir()
    (project / "train.py").write_text("print('new')\n")
    commit(project)

    assert made() == folder

    assert (folder / "train.py").read_text() == "print('new')\n"
    assert (folder / ".parrotflow/checkpoints").is_dir()
    assert yaml.safe_load((folder / "params.yaml").read_text())["model"]["width"] == 7
    assert not (folder / ".dvc/tmp/rwlock").exists()
    assert not (folder / "dvc.lock").exists()


def test_clones_that_a_kill_left_half_removed_or_after_their_record_are_removed_and_no_others(project: Path) -> None:
    for name in (".aa.partial", ".bb.partial/.git", "recorded", "failed"):
        (clone.CLONES / name).mkdir(parents=True)

    clone.remove_leftovers(["recorded", "other"])

    assert [path.name for path in clone.CLONES.iterdir()] == ["failed"]


def test_the_folder_of_the_project_may_have_a_comma_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_sweep(tmp_path / "a, b"))

    repro(made(), "collect")

    assert list(Path(".dvc/cache/files/md5").glob("*/*"))


def test_a_folder_that_is_no_clone_is_made_anew_and_git_never_falls_back_to_the_project(project: Path) -> None:
    (clone.CLONES / CELL.id).mkdir(parents=True)
    (project / "train.py").write_text("changed and not committed\n")
    head = git(project, "rev-parse", "HEAD")

    folder = made(head)

    assert (folder / ".git").is_dir()
    assert (project / "train.py").read_text() == "changed and not committed\n"


def test_a_sweep_starts_from_a_clean_tree_but_for_results_and_new_files(project: Path) -> None:
    (project / "notes.md").write_text("mine")
    (project / "experiments/toy.yaml").write_text("other")
    (project / "scores.json").write_text("{}")
    git(project, "add", "scores.json")
    pipeline = (project / "dvc.yaml").read_text().replace("curve.tsv", "reports/curve.tsv")
    (project / "dvc.yaml").write_text(pipeline)
    (project / "reports").mkdir()
    (project / "reports/times.json").write_text("1")
    git(project, "add", "reports", "dvc.yaml")
    git(project, "commit", "-qm", "a change")
    (project / "reports/times.json").write_text("2")
    assert clone.head_commit() == git(project, "rev-parse", "HEAD")

    (project / "params.yaml").write_text((project / "params.yaml").read_text() + "# later\n")
    with pytest.raises(UserError, match=r"^params\.yaml: changed since the last commit"):
        clone.head_commit()


def test_data_that_no_stage_makes_is_there_and_names_need_not_be_ascii(project: Path) -> None:
    for text in ("added\n", "other\n"):
        (project / "wörter.txt").write_text(text)
        dvc(project, "add", "-q", "wörter.txt")
        commit(project)
        folder = made()
        assert (folder / "wörter.txt").read_text() == text

    repro(folder, "collect")
    (folder / "maße.json").write_text("{}")
    saved = clone.save_experiment(folder, CELL.name, ["collect"])
    assert git(project, "show", f"{saved}:maße.json") == "{}"


def test_an_experiment_has_no_metric_of_a_stage_that_was_not_brought_up_to_date(project: Path) -> None:
    stage = "  judge: {cmd: cp scores.json judged.json, deps: [scores.json], metrics: [judged.json: {cache: false}]}\n"
    (project / "dvc.yaml").write_text((project / "dvc.yaml").read_text() + stage)
    (project / "judged.json").write_text('{"loss": 1.3969}')
    commit(project)
    folder = made()
    repro(folder, "train")

    saved = clone.save_experiment(folder, CELL.name, ["train"])

    files = git(project, "ls-tree", "--name-only", saved).split()
    assert "scores.json" in files
    assert "judged.json" not in files
