from pathlib import Path

import pytest

from flows.plan import settings
from flows.plan.settings import Policy, check_params, read_policy
from stages.runtime.errors import UserError

ROOT = Path(__file__).parents[3]


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
        (
            "  sets: {}",
            "  sets: {2024: a, b: c}",
            "evaluate: sets: the key 2024 is no text in YAML; write it in quotes",
        ),
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
    monkeypatch.setattr(settings, "DVC_FILE", tmp_path / "dvc.yaml")
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
    monkeypatch.setattr(settings, "DVC_FILE", tmp_path / "dvc.yaml")
    with pytest.raises(UserError, match=r"dvc\.yaml: the URL holds a password") as in_the_pipeline:
        check_params()

    assert not [said for said in (in_params, in_a_variable, in_the_pipeline) if "s3cr3t" in str(said.value)]


def test_a_policy_with_an_unknown_key_is_refused_by_stage_and_key() -> None:
    with pytest.raises(UserError, match=r"dvc.yaml: train.meta.flow.timeout: Extra inputs are not permitted"):
        read_policy("train", {"flow": {"timeout": 3}})
    assert read_policy("train", {"owner": "me"}) == Policy()
