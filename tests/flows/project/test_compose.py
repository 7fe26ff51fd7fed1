import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from dvc.utils.hydra import apply_overrides

from flows.project.compose import composed_text, composed_with_dial, difference, option, preset_groups, value_of
from flows.project.edit import apply, open_yaml, yaml_text
from flows.run.locks import run_lock
from stages.card.params import describes_another_corpus
from stages.runtime.errors import UserError
from stages.runtime.section import flatten, read_params_file
from tests.small_project import ROOT
from tests.train.small_run import environment


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def composed(tmp_path: Path, *words: str, base: Path | None = ROOT / "params.yaml") -> dict[str, dict[str, object]]:
    path = tmp_path / "params.yaml"
    if base:
        path.write_text(base.read_text())
    path.write_text(composed_text(words, path))
    return read_params_file(path)


@pytest.mark.parametrize(
    "word", [f"{group}={choice}" for group, choices in preset_groups(ROOT / "conf").items() for choice in choices]
)
def test_every_preset_gives_parameters_that_all_stages_take(tmp_path: Path, word: str) -> None:
    assert composed(tmp_path, word)


@pytest.mark.parametrize(
    "corpus", [choice for choice in preset_groups(ROOT / "conf")["corpus"] if choice != "embedded"]
)
def test_a_corpus_brings_all_that_is_said_of_it_and_the_default_takes_all_of_it_back(
    tmp_path: Path, corpus: str
) -> None:
    path, default = tmp_path / "params.yaml", read_params_file()
    path.write_text(composed_text([f"corpus={corpus}"]))
    chosen = read_params_file(path)

    assert describes_another_corpus(chosen["card"], chosen["collect"]["sources"]) is None
    # What is said of some packages holds for more of them.
    held = describes_another_corpus(default["card"], chosen["collect"]["sources"]) is None
    assert held is (corpus == "installed")
    path.write_text(composed_text(["corpus=embedded"], path))
    assert read_params_file(path) == default


@pytest.mark.parametrize(("corpus", "language"), [("folder", "mixed"), ("text", "text")])
def test_of_ones_own_files_no_license_is_stated_and_no_python(tmp_path: Path, corpus: str, language: str) -> None:
    found = composed(tmp_path, f"corpus={corpus}")
    card = found["card"]

    assert found["collect"]["sources"][0]["kind"] == "files"
    assert found["generate"]["language"] == language
    assert card["license"] is None
    assert "python" not in str(card).lower()
    assert "fibonacci" not in str(card)


def test_a_preset_replaces_an_open_mapping_whole_and_leaves_what_it_does_not_name(tmp_path: Path) -> None:
    before, after = read_params_file(), composed(tmp_path, "model=llama_mini", "evaluate.sets.mine=corpus/mine.txt")

    model = after["train"].pop("model")
    assert isinstance(model, dict)
    assert model["model_type"] == "llama"
    assert "head_dim" not in model
    assert after["evaluate"]["sets"] == {"mine": "corpus/mine.txt"}
    assert before["train"].items() >= after["train"].items()
    assert composed_text(["optimizer=muon"]) == (ROOT / "params.yaml").read_text(), "params.yaml said so already"


def test_a_value_is_set_by_its_dotted_key_and_comments_stay(tmp_path: Path) -> None:
    before = (ROOT / "params.yaml").read_text()

    after = composed_text(["train.optimizer.adamw_learning_rate=1e-3"])

    changed = [line for line in difference(before, after) if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert len(changed) == 2
    assert changed[1].startswith("+    adamw_learning_rate: 0.001")
    assert "# peak, for the rest" in changed[1]


def test_later_words_win_whether_they_are_presets_or_values(tmp_path: Path) -> None:
    assert composed(tmp_path, "recipe=longer", "train.max_steps=90")["train"]["max_steps"] == 90
    assert composed(tmp_path, "train.max_steps=70", "recipe=longer")["train"]["max_steps"] == 4090


@pytest.mark.parametrize(
    "text", ["Hello, world (2)", "It's [one], two", "a, b", "C # and more", "see ${oc.env:HOME} and ${publish.name}"]
)
def test_a_text_is_taken_as_it_is(tmp_path: Path, text: str) -> None:
    assert composed(tmp_path, f"card.description={text}")["card"]["description"] == text
    assert composed(tmp_path, "train.seed=1", base=None)["card"]["description"] == text


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ('"a: b"', "a: b"),
        ("'7'", "7"),
        ('{weights: {packages: 0.6, "*": 0.4}}', {"weights": {"packages": 0.6, "*": 0.4}}),
        ("null", None),
    ],
)
def test_a_value_is_written_as_in_params_yaml(given: str, value: object) -> None:
    assert value_of(f"train.mixture={given}") == value


def test_no_other_line_of_the_shipped_form_changes_and_a_tab_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = (ROOT / "params.yaml").read_text()
    assert yaml_text(open_yaml(shipped)) == shipped
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("params.yaml").write_text("fit:\n  rate: 1\t# tab\n")
    with pytest.raises(UserError, match=r"params\.yaml: line 2: not valid YAML: found character"):
        composed_text(["fit.rate=2"])


def test_dvc_sets_single_keys_and_keeps_their_comments(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    shutil.copyfile(ROOT / "params.yaml", path)

    apply_overrides(path, ["train.max_steps=70"])  # what `dvc exp run -S` calls

    assert re.search(r"max_steps: 70 +# optimizer steps", path.read_text())
    before = (ROOT / "params.yaml").read_text().replace("max_steps: 2250", "max_steps: 70").splitlines()
    after = path.read_text().splitlines()  # DVC writes nothing for null; other lines have the form that it keeps
    changed = [old for old, new in zip(before, after, strict=True) if old.split() != new.split()]
    assert all(": null" in line for line in changed)
    assert read_params_file(path) == composed(tmp_path, "train.max_steps=70")


def test_each_list_of_params_yaml_can_be_emptied_by_dvc_and_by_us(tmp_path: Path) -> None:
    """A comment after the key of a list makes ruamel.yaml drop a line break."""
    text = (ROOT / "params.yaml").read_text()
    values = read_params_file(ROOT / "params.yaml")
    for key in [key for key, value in flatten(values).items() if isinstance(value, list)]:
        expected, opened = deepcopy(values), open_yaml(text)
        apply(expected, {key: []})
        (tmp_path / "dvc.yaml").write_text(text)
        apply_overrides(tmp_path / "dvc.yaml", [f"{key}=[]"])
        apply(opened, {key: []})
        (tmp_path / "ours.yaml").write_text(yaml_text(opened))

        assert read_params_file(tmp_path / "dvc.yaml") == expected == read_params_file(tmp_path / "ours.yaml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model=gpt5", "model=gpt5: no such choice; conf/model has "),
        ("modle=gpt2", "modle=gpt2: no such group; "),
        ("modle=gpt2", "; did you mean `model`?"),
        ("recipe=longr", "width_128; did you mean `longer`?"),
        ("max_steps=3", "max_steps=3: name the parameter with its section: train.max_steps=3"),
        ("gpt2", "gpt2: expected GROUP=CHOICE or key=value; "),
        ("train.max_stesp=3", "train.max_stesp: no such parameter; did you mean `train.max_steps`?"),
        ("train.max_steps=-3", "train.max_steps = -3: Input should be greater than or equal to 1"),
        ("compute", "compute: expected TFLOP"),
        ("computed=1", "computed=1: no such group"),
        ("publish.name=1_1_1", "publish.name = 111: expected text, but YAML reads another type: quote it"),
        ("evaluate.sets={yes:x", "evaluate.sets={yes:x: line 1: not valid YAML: "),
        ("train.optimzer.name=x", "train.optimzer.name: no such parameter; did you mean `train.optimizer.name`?"),
        ("train.seed.of=1", "train.seed.of: params.yaml has no `train.seed`"),
        ("clean.split.by=document", "clean.split: by = document holds out single documents: set validation_sources"),
        ("clean.split.validation_share=0.1", "clean.split: validation_sources are held out, so none are drawn"),
        ("clean.split.validation_sources=[]", "clean.split: validation_share = null: set a share from 0 to 1"),
        ("compute=1 model=gpt5 compute=2", "compute=1 compute=2: give compute once"),
    ],
)
def test_what_no_stage_would_take_is_refused(words: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        composed_with_dial(words.split())

    assert message in str(refused.value)


def test_outside_a_project_the_root_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for missing in ("params.yaml", "conf/"):
        with pytest.raises(UserError, match=rf"^{missing}: .*not found.*; run this from the project's root"):
            composed_text(["train.seed=1"])
        Path("params.yaml").write_text("train: {seed: 0}\n")


def test_a_key_that_is_no_string_is_named() -> None:
    with pytest.raises(UserError, match=r"^params\.yaml: evaluate: sets: the key null is not a string; quote it$"):
        composed_text(["evaluate.sets={yes: corpus/mine.txt, null: x}"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the real parameters, presets and ways to launch."""
    for folder in ("conf", "deploy"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_difference_and_the_law_are_shown_and_the_recipe_is_written(project: Path) -> None:
    before = (project / "params.yaml").read_text(encoding="utf-8")
    # Words before the dial count for it, words after it win over it.
    words = ["train.sequence_length=128", "compute=1000", "train.seed=3", "train.schedule.warmup_steps=7"]
    command = [sys.executable, "-m", "flows.cli", "params", *words, "--yes"]

    said = subprocess.run(command, env=environment(), check=False, capture_output=True, text=True)

    assert said.returncode == 0, said.stderr
    for part in ("-  max_steps: 2250", "dial: 1,000 TFLOP: width", "rows of 128 tokens", "extrapolated", "1 PFLOP"):
        assert part in said.stdout
    written = (project / "params.yaml").read_text(encoding="utf-8")
    train, default = yaml.safe_load(written)["train"], yaml.safe_load(before)["train"]
    assert (train["seed"], train["schedule"]["warmup_steps"]) == (3, 7)
    assert train["model"]["max_position_embeddings"] == 128
    assert train["model"]["hidden_size"] > default["model"]["hidden_size"]
    assert "# optimizer steps" in written


def test_a_change_beside_a_run_is_written_with_a_warning(project: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "params", "clean.seed=3", "--yes"]
    with run_lock("`parrotflow run`"):
        said = subprocess.run(command, env=environment(), check=False, capture_output=True, text=True)

    assert said.returncode == 0, said.stderr
    assert "warning: the run `parrotflow run` (process " in said.stdout
    assert read_params_file(project / "params.yaml")["clean"]["seed"] == 3


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("compute=20", ["--tflop", "20"]),
        ("compute=1e3", ["--tflop", "1e3"]),
        ("compute=90s", ["--seconds", "90.0"]),
        ("compute=10min", ["--seconds", "600.0"]),
        ("compute=1.5h", ["--seconds", "5400.0"]),
    ],
)
def test_compute_is_a_number_of_tflop_or_a_time(word: str, expected: list[str]) -> None:
    assert option(word) == expected


@pytest.mark.parametrize("text", ["fast", "-1", "0min", "10 min", "10m", "1e99", "nan", ""])
def test_anything_else_is_refused(text: str) -> None:
    expected = "expected TFLOP, such as compute=20, or a time, such as compute=10min (s, min, h)"
    with pytest.raises(UserError, match=re.escape(f"compute={text}: {expected}")):
        option(f"compute={text}")


def test_a_preset_fills_a_model_that_was_emptied_to_start_from_another(tmp_path: Path) -> None:
    started = composed(tmp_path, f"train.start_from=openai-community/gpt2@{'a' * 40}", "train.model={}")
    assert started["train"]["model"] == {}
    assert composed(tmp_path, "model=gpt2", base=None)["train"]["model"] != {}
