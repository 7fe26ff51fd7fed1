import shutil
from pathlib import Path

import pytest
import yaml

from flows.plan.changes import Reason
from flows.plan.graph import PlannedStage, make_plan
from stages.runtime.errors import UserError
from tests.flows.toy import commit, dvc, make_toy, repro


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline that is up to date."""
    folder = make_toy(tmp_path / "toy")
    repro(folder)
    monkeypatch.chdir(folder)
    return folder


def plan(*targets: str, **options: bool) -> dict[str, PlannedStage]:
    return {stage.name: stage for stage in make_plan(targets, **options)}


def states(*targets: str, **options: bool) -> dict[str, str]:
    return {name: stage.state for name, stage in plan(*targets, **options).items()}


def replace(path: Path, before: str, after: str) -> None:
    path.write_text(path.read_text().replace(before, after))


def test_a_date_in_the_parameters_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy"))
    Path("params.yaml").write_text("left: {rate: 1, name: a, since: 2024-01-01}\n")

    with pytest.raises(UserError, match=r"Unsupported value of type 'date' in 'params.yaml:left.since'; quote it"):
        make_plan()


def test_a_pipeline_that_never_ran_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "new"))

    assert states() == dict.fromkeys(("first", "left", "right", "join"), "run")
    assert plan()["join"].reasons == (Reason("never run", "join"),)
    assert make_plan().is_first

    repro(Path(), "first")
    assert states() == {"first": "up to date", "left": "run", "right": "run", "join": "run"}
    assert not make_plan().is_first
    Path("dvc.lock").unlink()
    assert not make_plan().is_first, "DVC's cache has the result of the first stage"


@pytest.mark.parametrize(
    ("file", "change", "stages", "why"),
    [
        ("params.yaml", ("rate: 1", "rate: 2"), {"left": "run", "join": "maybe"}, "left.rate 1 → 2"),
        ("other.yaml", ("'1'", "'2'"), {"right": "run", "join": "maybe"}, "torch 1 → 2"),
        ("dvc.yaml", ("head -c 3", "head -c 4"), {"left": "run", "join": "maybe"}, "its command changed"),
        (
            "source.txt",
            ("5", "five"),
            {"first": "run", "left": "maybe", "right": "maybe", "join": "maybe"},
            "source.txt modified",
        ),
    ],
)
def test_a_change_runs_what_reads_it_and_is_named_and_what_follows_may_run(
    toy: Path, file: str, change: tuple[str, str], stages: dict[str, str], why: str
) -> None:
    before = (toy / "dvc.lock").read_bytes()
    replace(toy / file, *change)

    assert {name: state for name, state in states().items() if state != "up to date"} == stages
    assert plan()[next(iter(stages))].why == why
    assert plan()["join"].why.startswith("after ")
    assert (toy / "dvc.lock").read_bytes() == before


@pytest.mark.parametrize("names", [["join"], ["first", "left", "right", "join"]])
def test_missing_outputs_that_the_cache_has_are_restored(toy: Path, names: list[str]) -> None:
    for name in names:
        (toy / f"{name}.txt").unlink()

    assert [name for name, state in states().items() if state == "restore"] == names
    assert plan()["join"].why == "join.txt is missing"


def test_an_output_that_is_there_and_not_in_the_cache_is_not_called_missing(toy: Path) -> None:
    content = (toy / "join.txt").read_bytes()
    shutil.rmtree(toy / ".dvc/cache")
    (toy / "join.txt").unlink(missing_ok=True)  # it may be a link to the cache
    (toy / "join.txt").write_bytes(content)

    assert Reason("output", "join.txt", new="is not in DVC's cache") in plan()["join"].reasons


def test_a_result_computed_before_for_the_same_inputs_is_restored(toy: Path) -> None:
    replace(toy / "params.yaml", "rate: 1", "rate: 2")
    repro(toy)
    replace(toy / "params.yaml", "rate: 2", "rate: 1")

    assert states()["left"] == "restore"


def test_targets_bring_what_they_need_and_force_runs_it_although_it_is_clean(toy: Path) -> None:
    assert states("left") == {"first": "up to date", "left": "up to date"}
    assert states("left", force=True) == {"first": "run", "left": "run"}


def test_a_broken_dvc_yaml_is_a_clear_error(toy: Path) -> None:
    (toy / "dvc.yaml").write_text("stages: [")

    with pytest.raises(UserError, match=r"dvc\.yaml"):
        make_plan()


MATRIX = """\
stages:
  prepare:
    matrix: {size: [1, 2], letter: [a, b]}
    cmd: echo ${item.letter}${item.size} > ${item.letter}${item.size}.txt
    outs: ["${item.letter}${item.size}.txt"]
  each:
    foreach: [a, b]
    do:
      cmd: cat ${item}1.txt ${item}2.txt > ${item}.txt
      deps: ["${item}1.txt", "${item}2.txt"]
      outs: ["${item}.txt"]
  kept:
    cmd: cp a.txt kept.txt
    deps: [a.txt]
    outs: [kept.txt]
"""


def test_matrix_and_foreach_are_planned_by_their_names_and_frozen_stages_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(tmp_path / "toy", MATRIX)
    monkeypatch.chdir(folder)

    assert plan()["each@a"].upstream == ("prepare@1-a", "prepare@2-a")
    assert states("each@b") == dict.fromkeys(("prepare@1-b", "prepare@2-b", "each@b"), "run")
    repro(folder)
    replace(folder / "dvc.yaml", "echo ${item.letter}", "echo x${item.letter}")
    assert states("each@a") == {"prepare@1-a": "run", "prepare@2-a": "run", "each@a": "maybe"}
    assert states()["kept"] == "maybe"
    replace(folder / "dvc.yaml", "outs: [kept.txt]", "outs: [kept.txt]\n    frozen: true")
    with pytest.raises(UserError, match=r"kept is frozen, .*`dvc unfreeze kept`"):
        make_plan()


def test_without_targets_it_plans_what_plain_dvc_repro_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_toy(tmp_path / "toy")
    (folder / "more").mkdir()
    (folder / "more" / "dvc.yaml").write_text("stages:\n  alone: {cmd: echo 1 > alone.txt, outs: [alone.txt]}\n")
    monkeypatch.chdir(folder)
    planned = set(plan())
    with pytest.raises(UserError, match=r"more/dvc\.yaml:alone: .*; move it there"):
        make_plan(["more/dvc.yaml:alone"])

    repro(folder)

    assert not (folder / "more" / "alone.txt").exists()
    assert set(yaml.safe_load((folder / "dvc.lock").read_text())["stages"]) == planned
    with pytest.raises(UserError, match=r"more/dvc\.yaml:alone: parrotflow runs only the stages of dvc\.yaml"):
        make_plan(["more/dvc.yaml"])


def test_a_file_that_dvc_yaml_newly_names_is_a_reason(toy: Path) -> None:
    (toy / "new.py").write_text("x = 1\n")
    replace(toy / "dvc.yaml", "deps: [source.txt]", "deps: [source.txt, new.py]")

    assert plan()["first"].reasons == (Reason("code", "new.py", new="is new in dvc.yaml"),)


ALWAYS = """\
stages:
  look:
    cmd: date +%N > seen.txt
    deps: [source.txt]
    outs: [seen.txt]
    always_changed: true
  tell:
    cmd: echo told
  use:
    cmd: cp seen.txt used.txt
    deps: [seen.txt]
    outs: [used.txt]
"""


def test_a_stage_that_always_runs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_toy(tmp_path / "toy", ALWAYS)
    repro(folder)
    monkeypatch.chdir(folder)

    assert states() == {"look": "run", "use": "maybe", "tell": "run"}
    assert plan()["look"].why == "runs every time: always_changed in dvc.yaml"
    assert plan()["tell"].why == "runs every time: it has neither deps nor outs"
    said = repro(folder)
    assert "Running stage 'look'" in said
    assert "Running stage 'tell'" in said


def test_an_import_whose_source_cannot_be_reached_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_toy(tmp_path / "source")
    repro(source)
    commit(source)
    folder = make_toy(tmp_path / "toy")
    (folder / "dvc.yaml").write_text(
        "stages:\n  use: {cmd: cp join.txt used.txt, deps: [join.txt], outs: [used.txt]}\n"
    )
    dvc(folder, "import", "-q", str(source), "join.txt")
    repro(folder)
    source.rename(tmp_path / "gone")
    monkeypatch.chdir(folder)

    assert states() == {"join.txt.dvc": "up to date", "use": "up to date"}
    assert "up to date" in repro(folder)


def test_of_many_changed_code_files_and_libraries_the_first_are_named_and_the_rest_counted() -> None:
    code = [Reason("code", f"a{number}.py", new="modified") for number in range(9)]
    gone = [Reason("library", f"p{number}", "1.0") for number in range(54)]
    stage = PlannedStage("s", "run", (*code, *gone, Reason("output", "out", new="is missing")), ())

    assert stage.why == (
        "a0.py modified; a1.py modified; a2.py modified; and 6 more code files; "
        "p0 1.0 → nothing; p1 1.0 → nothing; p2 1.0 → nothing; and 51 more libraries; out is missing"
    )


def test_a_misspelled_stage_is_named_with_the_one_that_it_resembles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make_toy(tmp_path / "toy", "stages:\n  train: {cmd: echo 1 > one.txt, outs: [one.txt]}\n"))

    with pytest.raises(UserError, match=r"trian.*; did you mean `train`\?"):
        make_plan(["trian"])
