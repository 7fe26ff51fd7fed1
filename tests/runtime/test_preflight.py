"""What is refused before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from stages.runtime import preflight
from stages.runtime.errors import UserError
from stages.runtime.preflight import check_before_run, check_params
from stages.runtime.section import read_params_file
from tests.small_project import ROOT, changed


def checked(folder: Path, before: str, after: str) -> None:
    text = (ROOT / "params.yaml").read_text()
    assert before in text
    (folder / "params.yaml").write_text(text.replace(before, after, 1))
    check_params(folder / "params.yaml")


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("  max_steps: ", "  max_stesp: 3\n  max_steps: ", "train.max_stesp: unknown parameter (value 3)"),
        (
            "train:\n  seed: 0",
            "nonesuch: 1\ntrain:\n  seed: -1",
            "nonesuch: no stage of dvc.yaml has such a section\nparams.yaml: train.seed = -1: Input should be greater",
        ),
        ("  sets: {}", "  sets: {2024: a, b: c}", "evaluate: sets: the key 2024 is not a string; quote it"),
    ],
)
def test_all_faults_in_any_section_are_found_before_anything_runs(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    with pytest.raises(UserError) as refused:
        checked(tmp_path, before, after)

    assert message in str(refused.value).replace(f"{tmp_path}/", "")


DVC_YAML = """\
# the word nonesuch in a remark makes it no section
stages:
  own:
    cmd: ./own ${shown.in_command} ${ spaced.key } ${with-dash.key}
    params: [own.rate, {params.yaml: [listed], other.yaml: [elsewhere]}]
  elsewhere: {cmd: ./own, wdir: more, params: [../params.yaml: [above]]}
  each:
    foreach: [1]
    do: {cmd: ./each, params: [each]}
  unfinished:
"""


def test_a_section_belongs_to_whoever_dvc_yaml_lists_it_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    monkeypatch.setattr(preflight, "DVC_FILE", tmp_path / "dvc.yaml")
    sections = ("own", "shown", "spaced", "with-dash", "listed", "above", "each")
    text = (ROOT / "params.yaml").read_text() + "".join(f"\n{name}: {{a: 1}}" for name in sections)
    (tmp_path / "params.yaml").write_text(text)
    check_params(tmp_path / "params.yaml")

    (tmp_path / "params.yaml").write_text(text + "\nnonesuch: 1\nelsewhere: 1\n")
    with pytest.raises(UserError) as refused:
        check_params(tmp_path / "params.yaml")
    assert [line.split(": ")[1] for line in str(refused.value).splitlines()] == ["elsewhere", "nonesuch"]


def test_another_project_needs_no_parameters_of_ours_though_it_may_have_a_folder_named_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_params()
    for name in ("prepare", "train"):
        (tmp_path / "stages" / name).mkdir(parents=True)
    (tmp_path / "stages/prepare/params.py").write_text("rate = 1")
    (tmp_path / "params.yaml").write_text("anything: 1\n")
    check_params()


def test_a_password_in_a_url_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "s3://key:s3cr3t@bucket/runs"
    with pytest.raises(UserError, match=r"train\.start_from: the URL holds a password") as in_params:
        checked(tmp_path, "start_from: null", f"start_from: {url}")
    monkeypatch.setenv("PARROTFLOW_MIRROR", url)
    with pytest.raises(UserError, match="PARROTFLOW_MIRROR: the URL holds a password") as in_a_variable:
        check_params()
    monkeypatch.delenv("PARROTFLOW_MIRROR")
    (tmp_path / "dvc.yaml").write_text(f"stages: {{own: {{cmd: 'true', deps: ['{url}']}}}}\n")
    monkeypatch.setattr(preflight, "DVC_FILE", tmp_path / "dvc.yaml")
    with pytest.raises(UserError, match=r"dvc\.yaml: the URL holds a password") as in_the_pipeline:
        check_params()

    assert not [said for said in (in_params, in_a_variable, in_the_pipeline) if "s3cr3t" in str(said.value)]


def test_a_submodule_that_a_stage_reads_and_that_is_not_checked_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text("stages: {collect: {cmd: 'true', deps: [corpus]}, other: {cmd: 'true'}}")
    Path(".gitmodules").write_text('[submodule "texts"]\n\tpath = corpus/texts\n\turl = ../texts\n')
    Path("corpus/texts").mkdir(parents=True)

    for to_do in (None, ["collect"]):
        with pytest.raises(UserError, match=r"^corpus/texts: a git submodule without its files, and collect"):
            check_before_run(to_do)
    check_before_run(["other"])
    Path("corpus/texts/a.txt").write_text("here")
    check_before_run()


COMMIT = "0" * 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"score__run_generated_code": True, "score__k": [1, 11]},
            "score.k = [1, 11]: generate.problems.samples = 10; lower k or raise samples",
        ),
        ({"evaluate__context_length": 257}, "evaluate.context_length = 257: train.model has 256 positions; lower it"),
        ({"evaluate__stride": 257}, "evaluate.stride = 257: more than the context of 256 tokens skips text; lower it"),
        (
            {"evaluate__sets": {"validation": "evaluation/held_out"}},
            "evaluate.sets.validation: this name belongs to the split that cleaning holds out; choose another",
        ),
        ({"evaluate__baselines": [f"a/b@{COMMIT}"] * 2}, f"evaluate.baselines: a/b@{COMMIT} is listed twice"),
        (
            {"tokenizer__kind": "characters"},
            "tokenize.engine: tokenizer.kind = characters needs tokenize.engine: tokenizers",
        ),
        (
            {"card__describes": ["mine"]},
            "card.describes is [mine], but collect.sources has packages: the card would describe another corpus.",
        ),
    ],
)
def test_what_a_stage_would_refuse_after_others_have_run_is_refused_before(
    changes: dict[str, Any], message: str
) -> None:
    stage = message.partition(".")[0]
    with pytest.raises(UserError) as refused:
        check_before_run(values=changed(read_params_file(), **changes))

    assert str(refused.value).startswith(f"params.yaml: {message}")
    assert "\n" not in str(refused.value)
    check_before_run(
        {*preflight.section_models()} - {stage}, changed(read_params_file(), **changes)
    )  # not if it does not run


UNLISTED = "is not among the deps of {} in dvc.yaml, so a change would go unnoticed: add it there"
MISSING = "is missing: put it there, or correct the path"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__start_from": "deploy"}, f"train.start_from: deploy {UNLISTED.format('train')}"),
        ({"train__start_from": ".parrotflow/checkpoints/a/step-1"}, f"step-1 {MISSING}"),
        ({"train__start_from": f"a/b@{COMMIT}"}, ""),
        ({"evaluate__sets": {"mine": "docs"}}, f"evaluate.sets.mine: docs {UNLISTED.format('evaluate')}"),
        ({"evaluate__sets": {"mine": "evaluation/held_out/none"}}, f"evaluation/held_out/none {MISSING}"),
        ({"evaluate__sets": {"mine": "data/tokens/train/a"}}, f"data/tokens/train/a {UNLISTED.format('evaluate')}"),
        ({"evaluate__baselines": ["deploy"]}, f"evaluate.baselines: deploy {UNLISTED.format('evaluate')}"),
        ({"evaluate__baselines": ["published/a/revisions/b"]}, f"published/a/revisions/b {MISSING}"),
        (
            {"clean__decontamination": {"files": ["docs"], "fields": ["a"], "ngram_size": 9, "minimum_words": 1}},
            f"clean.decontamination.files: docs {UNLISTED.format('clean')}",
        ),
        (
            {"tokenizer__kind": "existing", "tokenizer__folder": "docs"},
            f"tokenizer.folder: docs {UNLISTED.format('tokenizer')}",
        ),
        (
            {"generate__problems__sets": [{"path": "evaluation/problems/no", "language": "python", "stop": None}]},
            f"generate.problems.sets.path: evaluation/problems/no {MISSING}",
        ),
    ],
)
def test_a_file_that_a_parameter_names_has_to_be_there_and_among_the_deps(
    changes: dict[str, Any], message: str
) -> None:
    try:
        check_before_run(values=changed(read_params_file(), **changes))
    except UserError as error:
        assert message
        assert str(error).endswith(message)  # noqa: PT017 - one of them is no error
    else:
        assert not message
