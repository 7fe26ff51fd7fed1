import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from stages.card.__main__ import main
from stages.card.card import filled_card
from stages.card.inputs import CardInputs, read_inputs
from stages.card.params import CardParams, Destination, read_destination
from stages.formats.cleaning import CleanReport, SearchedItems
from stages.formats.evaluation.report import BaselineComparison, HeldOutMetrics
from stages.formats.evaluation.scores import HarnessReport, ScoredWith, TaskReceipt
from stages.formats.reports import read_json, write_json
from stages.formats.revision.execution import TRAIN_REPORT
from stages.formats.sources import MAX_SHOWN_ROWS, Amount, Source
from stages.formats.training import SourceShare
from stages.runtime.errors import UserError
from stages.runtime.section import read_section
from tests.small_project import ROOT
from tests.trained_project import write_sections

MAIN = Path("data/card")


def card() -> str:
    """The card of the current folder."""
    main()
    return (MAIN / "README.md").read_text()


def test_the_hub_can_read_the_metrics_in_the_card(project: Path) -> None:
    card()

    evaluation = json.loads(Path("reports/evaluate.json").read_text())
    loaded = ModelCard.load(MAIN / "README.md")
    assert loaded.data.license == "apache-2.0"
    values = {result.metric_type: result.metric_value for result in loaded.data.eval_results}
    assert values == {name: evaluation[name] for name in ("loss", "perplexity", "bits_per_byte")}


def test_a_name_that_yaml_reads_as_a_number_is_refused_in_one_line(project: Path) -> None:
    write_sections(project, publish__name=7)
    with pytest.raises(UserError, match=r"^params\.yaml: publish\.name = 7: expected text"):
        read_destination()


def test_the_card_reports_data_metrics_samples_and_limits(project: Path) -> None:
    text = card()

    samples = json.loads(Path("data/samples.json").read_text())
    counts = json.loads(Path("reports/tokenize.json").read_text())
    assert "A model for tests." in text
    assert f"| MIT | {counts['train']['documents']} | {counts['train']['bytes']:,} |" in text
    assert f"| MIT | {counts['validation']['documents']} | {counts['validation']['bytes']:,} |" in text
    assert "| PPMd after the training text (bits per byte) | " in text
    assert "| xz -9 cold (bits per byte) | " in text
    assert re.search(r"and after reading the last [\d,]+ bytes of the training text\.", text)
    assert "| mine | " in text  # bits per byte of each source
    assert all(sample["signature"] in text for sample in samples)
    assert "filters dropped 1 (generated)" in text
    for heading in ("Use", "Intended use and limitations", "Evaluation", "Data", "Training", "Reproduce", "Citation"):
        assert f"\n## {heading}\n" in text


def harness_report(documents: int) -> HarnessReport:
    """Results of a task with 100 documents."""
    hashes = {"config_sha256": "0", "documents_sha256": "1"}
    requests = {"num_fewshot": 5, "requests": 4 * documents, "requests_cut": 3}
    task = TaskReceipt(version="1", documents=documents, documents_in_task=100, **hashes, **requests)
    return HarnessReport(
        harness={"quiz|": {"acc": 0.25, "f1": 0.125, "odd": None}},
        stderr={"quiz|": {"acc": 0.01, "f1": 0.01}},
        tasks={"quiz|": task},
        scored_with=ScoredWith(
            weights_sha256=read_json(TRAIN_REPORT)["weights_sha256"],
            context_length=1024,
            seed=0,
            bootstrap_resamples=9,
            versions={"lm_eval": "0.4.13"},
        ),
    )


def test_benchmarks_are_in_the_card_with_intervals_and_in_the_model_index(project: Path) -> None:
    harness_report(documents=100).write()

    text = card()

    assert "\n\n\n" not in text
    assert "| quiz\\| | acc | 0.25 | 0.2302 to 0.2698 | 100 | 5 |" in text
    assert "| quiz\\| | f1 | 0.125 | 0.1052 to 0.1448 | 100 | 5 |" in text
    assert "| quiz\\| | odd | none |  | 100 | 5 |" in text
    assert "- quiz\\|: 3 of 400 requests are longer than the model's window, which cut their beginning." in text
    results = ModelCard.load(MAIN / "README.md").data.eval_results
    found = {result.metric_type: result for result in results if result.dataset_name == "quiz|"}
    assert {metric: result.metric_value for metric, result in found.items()} == {"acc": 0.25, "f1": 0.125}
    assert found["f1"].metric_name == "f1 (5-shot, lm-evaluation-harness), 95 % interval 0.1052 to 0.1448"

    harness_report(documents=99).write()  # over some of its documents it compares with no other model

    assert "| quiz\\| | acc | 0.25 | 0.2302 to 0.2698 | 99 of 100 | 5 |" in card()
    results = ModelCard.load(MAIN / "README.md").data.eval_results
    assert not any(result.dataset_name == "quiz|" for result in results)


def test_nothing_from_the_corpus_becomes_markup(project: Path) -> None:
    hostile = "`x`|\n# y <img src=https://evil.example/p> [z](https://evil.example)"
    documents = next(Path("data/tokens/validation").glob("*.documents.jsonl"))
    entries = [json.loads(line) for line in documents.read_text().splitlines()]
    documents.write_text(
        "".join(json.dumps(entry | {"source": hostile, "license": hostile}) + "\n" for entry in entries)
    )
    report = read_json(Path("reports/evaluate.json"))
    write_json(Path("reports/evaluate.json"), report | {"bits_per_byte_per_source": {hostile: 1.0}})
    samples = read_json(Path("data/samples.json"))
    escape_fence = {"source": hostile, "path": hostile, "signature": "```\n# out", "body": "\n````\n# out\n"}
    write_json(Path("data/samples.json"), [sample | escape_fence for sample in samples])
    dropped = {hostile: Amount(documents=1, bytes=1)}
    CleanReport.read().model_copy(update={"dropped": dropped}).write()

    body = card().split("---\n", 2)[2]

    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert [heading for heading in headings if "y" in heading.split() or heading == "out"] == []
    kinds = {child.type for token in tokens for child in token.children or []}
    assert not kinds & {"html_inline", "link_open", "image"}
    rows = [token for token in tokens if token.type == "inline" and "evil.example" in token.content]
    assert len(rows) >= 4


def test_the_code_of_the_card_runs_in_the_folder_it_came_with(project: Path, tmp_path: Path) -> None:
    text = card()
    elsewhere = tmp_path / "downloaded"
    shutil.copytree("model", elsewhere)
    code = next(token.content for token in MarkdownIt().parse(text) if token.info == "python")
    (tmp_path / "home").mkdir()

    result = subprocess.run(
        [sys.executable, "-c", code.replace("max_new_tokens=100", "max_new_tokens=2")],
        cwd=elsewhere,
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("def f(")


def written(inputs: CardInputs, **changes: Any) -> str:
    """A card of these inputs with some of them changed."""
    params = read_section("card", CardParams).model_copy(update=changes.pop("params", {}))
    destination = Destination(name="tiny", repository=changes.pop("repository", None))
    changed = replace(inputs, **changes)
    return filled_card(params, destination, changed, with_curves=False)


@pytest.fixture
def inputs(project: Path) -> CardInputs:
    return read_inputs()


def test_the_card_of_a_model_of_text_shows_no_python(inputs: CardInputs) -> None:
    samples = [replace(sample, parses=None, body=" of words.", finished=True) for sample in inputs.samples]
    counts = inputs.generation.samples.model_copy(update={"parsed_share": None})
    generation = inputs.generation.model_copy(update={"samples": counts})

    text = written(inputs, params={"language": ["en"]}, samples=samples, generation=generation)

    assert "Written by the model:\n\n```text\n of words.\n```\n" in text
    assert "valid Python" not in text
    assert text.count("```python\n") == 1  # how to load it


@pytest.mark.parametrize(
    ("prompt", "signature", "shown"),
    [
        ("Es war einmal", "def f", "Es war einmal"),
        ("", "\n  def f\n", "def f"),
        ("", "- an option on a command line\n- one more\nEs war", "Es war"),
        ("", "Wort " * 20, " ".join(["Wort"] * 12)),
        ("", "日" * 90, "日" * 60),
        ("", "", ""),
    ],
)
def test_the_example_is_the_publishers_or_the_beginning_of_a_held_out_document_in_whole_words(
    inputs: CardInputs, prompt: str, signature: str, shown: str
) -> None:
    text = written(inputs, params={"prompt": prompt}, samples=[replace(inputs.samples[0], signature=signature)])

    assert f'prompt = tokenizer("{shown}", return_tensors="pt")' in text


def test_the_card_says_what_was_measured_removed_and_stated(inputs: CardInputs) -> None:
    sample = inputs.samples[0]
    masked = {"ip_addresses": 1200, "emails": 3, "keys": 0}
    searched = SearchedItems(by_ngrams=1037, whole=5, not_searched=2)

    text = written(
        inputs,
        repository="me/model",
        params={
            "contact": "<https://example.org>",
            "authors": ["Ada Lovelace", "Alan Turing"],
            "limitations": ["Slow."],
        },
        samples=[replace(sample, parses=True, body=" x", finished=False), replace(sample, parses=False, body="\n")],
        train=replace(inputs.train, sources=[source("code 2", "", 3, 700), source("code", "2", 1, 600)]),
        clean=inputs.clean.model_copy(update={"masked": masked, "evaluation_items": searched}),
        cleaning_params={"near_duplicates": None, "decontamination": {"files": ["a.jsonl"], "ngram_size": 13}},
        training_params={"seed": 7, "optimizer": {"betas": [0.9, 0.95]}, "deterministic_micro_batch_size": 4}
        | {"mixture": None, "evaluation_sequences": 64},
    )

    for said in (
        'name = "me/model"',
        "Each tag of the repository is a revision",
        "url = {https://huggingface.co/me/model}",
        "## Intended use and limitations\n\nFor tests.\n\n- Slow.\n- It was evaluated on documents of 1 source",
        "## Contact\n\n<https://example.org>\n",
        "author = {Ada Lovelace and Alan Turing},",
        "Made by Ada Lovelace, Alan Turing. The license of the weights: apache-2.0.\n",
        "(parses; cut off):",
        "(does not parse; the model wrote nothing):",
        "| code 2 | 3 | 700 |",
        "| code 2 | 1 | 600 |",
        "| none stated | 4 | 1,300 |",
        "Masked: 3 emails, 1,200 ip addresses. The training split has 4 documents",
        "Near-duplicates were not removed.",
        "evaluation sets were removed (files: a.jsonl, ngram_size: 13).",
        "Of the evaluation items 1,037 were looked for by their n-grams, 5 shorter ones as a whole, 2 not at all.",
        "about 9.9e+07 floating-point operations in training (1e+06 per token, 99 tokens)",
        "| seed | 7 |",
        "| optimizer.betas | 0.9, 0.95 |",
        f"| torch | {version('torch').split('+')[0]} |",
        "with any number of processes and threads",
    ):
        assert said in text
    assert "| mixture |" not in text
    assert "| evaluation_sequences |" not in text


def test_the_card_does_not_speak_of_what_is_not_there(project: Path) -> None:
    inputs = read_inputs()
    cleaning = {"near_duplicates": {"similarity": 0.85}}
    text = written(replace(inputs, samples=[]), cleaning_params=cleaning, params={"license": None})

    for absent in ("## Samples", "## Benchmarks", "curves.png", "## Contact", "evaluation items"):
        assert absent not in text
    for said in (
        "Near-duplicates were removed by MinHash (similarity: 0.85).",
        "(no decontamination)",
        "with the same number of processes and threads",
        "On GPUs sums have no fixed order",
        "parrotflow reproduce PATH/revisions/REVISION",
        "The license of the weights: none stated.",
    ):
        assert said in text
    assert ModelCard(text).data.license is None
    main()
    assert not (MAIN / "curves.png").exists()


def test_a_report_of_few_documents_has_no_interval_and_says_why(inputs: CardInputs) -> None:
    assert inputs.evaluation.documents < 10
    text = written(inputs)

    assert f"| bits per byte | {inputs.evaluation.bits_per_byte:.4g} |  |" in text
    assert "of fewer than 10 none" in text
    (named,) = (one.metric_name for one in ModelCard(text).data.eval_results if one.metric_type == "bits_per_byte")
    assert named == "bits per byte"


def test_the_card_says_how_much_of_the_corpus_was_read(inputs: CardInputs) -> None:
    text = written(inputs, train=replace(inputs.train, tokens=198))

    assert "trained from scratch on 99 tokens of a corpus of 198 (0.50 epochs)." in text
    assert "The training split has" in text


def test_continued_weights_are_named_and_those_of_the_hub_in_the_metadata_too(inputs: CardInputs) -> None:
    commit = "a" * 40

    def started(start_from: str | None) -> str:
        return written(inputs, training_params={"start_from": start_from})

    assert "trained from scratch on " in started(None)
    assert "base_model:" not in started(None)
    assert "trained from the weights of ../a\\_ on " in started("../a_")
    assert "base_model:" not in started("../a_")
    assert f"trained from the weights of owner/name\\@{commit} on " in started(f"owner/name@{commit}")
    assert ModelCard(started(f"owner/name@{commit}")).data.base_model == "owner/name"


def test_further_sets_and_other_models_are_in_the_card_with_their_intervals(inputs: CardInputs) -> None:
    evaluation = inputs.evaluation
    other = BaselineComparison(bits_per_byte=2.5, difference=-0.5, difference_interval_95=(-0.75, -0.25))
    ends = evaluation.interval_95.model_copy(update={"bits_per_byte": (3.25, 3.75)})
    sets = {
        "web|": HeldOutMetrics(
            **evaluation.model_dump(exclude={"sets", "receipt"})
            | {"bits_per_byte": 3.5, "documents": 70, "interval_95": ends}
        )
    }

    changed = {"compared": {"gpt2": other}, "sets": sets, "documents": 10}
    text = written(inputs, evaluation=evaluation.model_copy(update=changed))

    assert "| web\\| | 3.5 | 3.25 to 3.75 | 70 |" in text
    assert "| gpt2 | 2.5 | -0.5 | -0.75 to -0.25 |" in text


def source(name: str, revision: str, documents: int, size: int) -> Source:
    licenses = {"": Amount(documents=documents, bytes=size)}
    return Source(name=name, revision=revision, documents=documents, bytes=size, ids="", licenses=licenses)


def test_the_largest_sources_are_listed_and_the_rest_summed_up(inputs: CardInputs) -> None:
    split = replace(
        inputs.train, sources=[source(f"source {n:02d}", "", 1, 1000 - n) for n in range(MAX_SHOWN_ROWS + 2)]
    )

    rows = [line for line in written(inputs, train=split).splitlines() if line.startswith("| source ")][1:]

    assert [row.split(" | ")[0] for row in rows[:MAX_SHOWN_ROWS]] == [
        f"| source {n:02d}" for n in range(MAX_SHOWN_ROWS)
    ]
    assert f"| 2 more | 2 | {2 * 1000 - 2 * MAX_SHOWN_ROWS - 1:,} |" in written(inputs, train=split)
    assert f"| none stated | {MAX_SHOWN_ROWS + 2} | {split.total.bytes:,} |" in written(inputs, train=split)


def test_the_architecture_is_that_of_the_configuration(inputs: CardInputs) -> None:
    text = written(inputs)

    for row in ("| layers | 2 |", "| width | 16 |", "| attention heads | 2 |", "| context (tokens) | 32 |"):
        assert row in text
    assert "| context (tokens) | 32, trained at 16 |" in written(inputs, training_params={"sequence_length": 16})
    llama = {"model_type": "llama", "num_hidden_layers": 3, "num_key_value_heads": 1, "tie_word_embeddings": False}
    text = written(inputs, config=llama | {"vocab_size": 300})
    for row in ("| layers | 3 |", "| key-value heads | 1 |", "| input and output embeddings shared | no |"):
        assert row in text


def test_the_license_of_each_source_is_stated(inputs: CardInputs) -> None:
    split = inputs.train
    split.sources[0].licenses[""] = Amount()

    assert f"| mine 1 | {split.total.documents} | {split.total.bytes:,} | MIT, none stated |" in written(inputs)


def test_the_same_curves_give_the_same_picture_which_the_card_shows(project: Path) -> None:
    Path("reports/curves").mkdir()
    Path("reports/curves/training_loss.tsv").write_text("step\ttraining_loss\n10\t6.5\n20\t6.0\n")
    Path("reports/curves/learning_rate.tsv").write_text("step\tadamw\tmuon\n10\t0.1\t0.2\n20\t0.05\t0.1\n")
    Path("matplotlibrc").write_text("axes.facecolor: red\n")

    assert "![Loss and learning rate by step](curves.png)" in card()
    picture = (MAIN / "curves.png").read_bytes()
    elsewhere = subprocess.run(
        [sys.executable, "-c", "from stages.card.card import *; draw_picture(Path('again.png'))"],
        env={"MPLBACKEND": "svg", "HOME": str(project), "PYTHONPATH": str(ROOT)},
        check=True,
    )

    assert elsewhere.returncode == 0
    assert Path("again.png").read_bytes() == picture
    assert picture.startswith(b"\x89PNG")
    assert b"Matplotlib" not in picture


def test_a_mixture_is_told_by_source(inputs: CardInputs) -> None:
    mixture = {
        "web": SourceShare(tokens=1234, share=0.5, epochs=1.5),
        "w|b": SourceShare(tokens=2, share=0.25, epochs=2.0),
    }
    text = written(inputs, training=inputs.training.model_copy(update={"mixture": mixture}))

    table = text[text.index("### Mixture") :].split("\n\n")[2]
    assert table.splitlines()[2:] == ["| web | 1,234 | 50.00% | 1.50 |", "| w\\|b | 2 | 25.00% | 2.00 |"]
    assert "\n\n\n" not in text
    assert "| mixture |" not in text
    assert "### Mixture" not in written(inputs)
