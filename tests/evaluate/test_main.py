import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from stages.evaluate.__main__ import main
from stages.evaluate.commands.sample import sample
from stages.formats.documents import read_documents, read_table
from stages.formats.evaluation.report import DOCUMENT_LOSSES
from stages.runtime.errors import EXIT_INTERRUPTED, UserError
from tests.small_project import ROOT
from tests.trained_project import write_sections

OUTS = ["reports/evaluate.json", "reports/loss_by_position/validation.csv"]


def outs(project: Path) -> dict[str, bytes]:
    return {name: (project / name).read_bytes() for name in OUTS}


def test_the_whole_held_out_split_is_scored(project: Path) -> None:
    main()

    report = json.loads((project / "reports/evaluate.json").read_text())
    tokenized = json.loads((project / "reports/tokenize.json").read_text())["validation"]
    assert {name: report[name] for name in ("documents", "tokens", "bytes")} == {
        name: tokenized[name] for name in ("documents", "tokens", "bytes")
    }
    assert report["loss"] == pytest.approx(5.7, abs=0.1)  # ln 300: it has learned nothing
    assert report["bits_per_byte"] == pytest.approx(report["loss"] * report["tokens"] / report["bytes"] / 0.693147)
    assert report["bits_per_byte_per_source"] == {"mine": report["bits_per_byte"]}


def test_the_report_can_be_recomputed_from_its_files_and_another_batch_size_gives_the_same_bytes(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main()

    report, first = json.loads((project / "reports/evaluate.json").read_text()), outs(project)
    documents = read_table(DOCUMENT_LOSSES).to_pandas()
    assert len(documents) == report["documents"]
    assert documents.nats.sum() / documents.tokens.sum() == pytest.approx(report["loss"], rel=1e-5)
    positions = pd.read_csv(project / "reports/loss_by_position/validation.csv")
    assert positions.tokens.sum() == report["tokens"]
    assert (positions.loss * positions.tokens).sum() / report["tokens"] == pytest.approx(report["loss"], rel=1e-5)
    monkeypatch.setenv("PARROTFLOW_EVALUATE_BATCH", "3")
    main()
    assert outs(project) == first


def test_a_further_set_has_the_same_numbers_as_the_validation_split(project: Path) -> None:
    shards = sorted((project / "data/clean/validation").glob("*.parquet"))
    (project / "again").mkdir()
    for shard in shards:
        shutil.copyfile(shard, project / "again" / shard.name)
    write_sections(project, evaluate__sets={"again": "again"})

    main()

    report = json.loads((project / "reports/evaluate.json").read_text())
    again = report["sets"].pop("again")
    assert again == {name: report[name] for name in again}
    receipt = report["receipt"]["sets"]
    assert receipt["again"] == receipt["validation"] | {"path": "again"}


def test_documents_of_a_set_that_were_trained_on_are_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = [document.text for document in islice(read_documents(project / "data/clean/train"), 2)]
    rows = [{"text": text} for text in (*known, "# nobody has seen this\n")]
    (project / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_sections(project, evaluate__sets={"mine": "mine.jsonl"})

    main()

    said = "2 of 3 documents of mine are in the training data."
    assert f"note: {said}\n" in capsys.readouterr().out
    assert said in json.loads((project / "reports/evaluate.json").read_text())["receipt"]["convention"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate__context_length": 33}, "evaluate.context_length = 33: the model reads at most 32 tokens"),
        ({"evaluate__stride": 33}, "evaluate.stride = 33: a stride above the context of 32 tokens skips text"),
    ],
)
def test_a_parameter_out_of_range_is_refused(project: Path, changes: dict[str, int], message: str) -> None:
    write_sections(project, **changes)

    with pytest.raises(UserError, match=re.escape(message)):
        main()


def test_a_model_that_is_missing_or_damaged_is_named(project: Path) -> None:
    weights_file = project / "model/model.safetensors"
    whole = weights_file.read_bytes()
    weights_file.write_bytes(whole[:100])
    with pytest.raises(UserError, match=r"^model: transformers cannot load this model: "):
        main()

    weights_file.write_bytes(whole)
    weights = load_file(weights_file)
    save_file({name: value for name, value in weights.items() if "h.1.ln_1" not in name}, weights_file)
    with pytest.raises(UserError, match=r"^model: weights are missing: transformer\.h\.1\.ln_1\.bias, "):
        main()

    weights_file.rename(project / "model/pytorch_model.bin")
    with pytest.raises(UserError, match=r"^model: the weights are pickled \(pytorch_model\.bin\)"):
        main()

    shutil.rmtree(project / "model")
    with pytest.raises(UserError, match=r"^model: holds no model .* `dvc checkout model` restores the previous one"):
        main()


def test_a_model_that_has_diverged_is_reported(project: Path) -> None:
    weights_file = project / "model/model.safetensors"
    weights = load_file(weights_file)
    weights["transformer.ln_f.weight"][0] = float("nan")
    save_file(weights, weights_file, metadata={"format": "pt"})

    with pytest.raises(UserError, match=r"^model: the loss of (\d+) of \1 held-out documents is not a finite number"):
        main()
    assert not (project / "reports/evaluate.json").exists()


@pytest.mark.usefixtures("project")
def test_a_prompt_in_another_encoding_or_a_length_that_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="the prompt is not UTF-8"):
        sample(os.fsdecode(b"caf\xe9"))
    with pytest.raises(UserError, match="--max-new-tokens 999999999999: Input should be less than"):
        sample("x", max_new_tokens=999999999999)


def test_a_prompt_longer_than_the_context_is_cut_and_the_terminal_says_so(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample("x = 1\n" * 50, max_new_tokens=2)

    shown = capsys.readouterr()
    said = r"^warning: the prompt has \d+ tokens, the model reads at most 32: it reads the last 32$"
    assert re.search(said, shown.err, re.M)
    assert shown.out.startswith("x = 1\n" * 50)
    assert len(shown.out) > len("x = 1\n" * 50)


def test_a_closed_pipe_ends_without_a_traceback(project: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m flows.cli sample - --max-new-tokens 400 | head -c 1"

    result = subprocess.run(
        command,
        shell=True,
        input=b"def f(",
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )

    assert (result.stdout, result.stderr) == (b"d", b"")


def test_an_interrupted_sample_does_not_claim_to_continue(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stages.evaluate.commands.sample.open_model", interrupt)
    with pytest.raises(SystemExit) as ended:
        sample("x")

    assert ended.value.code == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(("file", "key"), [("config.json", "AutoConfig"), ("tokenizer_config.json", "AutoTokenizer")])
def test_code_in_a_model_folder_is_never_executed(project: Path, file: str, key: str) -> None:
    values = json.loads((project / "model" / file).read_text())
    target = "own.Config" if key == "AutoConfig" else [None, "own.Tokenizer"]
    values |= {"auto_map": {key: target}, "model_type": "own", "tokenizer_class": "Tokenizer"}
    (project / "model" / file).write_text(json.dumps(values))
    (project / "model/own.py").write_text("open('executed', 'w').close()\nclass Config: pass\nclass Tokenizer: pass\n")

    result = subprocess.run(
        [sys.executable, "-m", "flows.cli", "sample", "x", "--max-new-tokens", "1"],
        env={"PYTHONPATH": str(ROOT), "HF_HOME": str(project / "home")},
        input="y\n" * 20,
        capture_output=True,
        text=True,
        check=False,
    )

    assert not (project / "executed").exists()
    assert "Traceback" not in result.stderr
    if key == "AutoConfig":  # tokenizer.json is enough to load the tokenizer without its own code
        assert result.returncode == 2
        assert result.stderr.startswith("error: model: transformers cannot load this ")
