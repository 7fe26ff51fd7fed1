import json
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
from stages.card.card import filled_card, flat, shown
from stages.card.inputs import CardInputs, read_inputs
from stages.card.params import CardParams, Destination
from stages.card.render import metadata
from stages.formats.evaluation.report import BaselineComparison, HeldOutMetrics
from stages.formats.evaluation.scores import HarnessReport, ScoredWith, TaskReceipt
from stages.formats.model_folder import weights_sha256
from stages.formats.reports import read_json, write_json
from stages.formats.sources import ROWS_SHOWN, Amount, Source
from stages.runtime.entry import UserError
from stages.runtime.section import read_section
from tests.formats.revision import records
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


def test_the_card_reports_data_metrics_samples_and_limits(project: Path) -> None:
    text = card()

    samples = json.loads(Path("data/samples.json").read_text())
    counts = json.loads(Path("reports/tokenize.json").read_text())
    assert "A model for tests." in text
    assert f"| MIT | {counts['train']['documents']} | {counts['train']['bytes']:,} |" in text
    assert f"| MIT | {counts['validation']['documents']} | {counts['validation']['bytes']:,} |" in text
    assert "| training loss (nats per token) | 5.5 |" in text
    assert "| gzip -9 (bits per byte) |" in text
    assert "| mine | " in text  # bits per byte of each source
    assert all(sample["signature"] in text for sample in samples)
    assert "filters dropped 1 (generated)" in text
    for heading in ("Use", "Intended use and limitations", "Evaluation", "Data", "Training", "Reproduce", "Citation"):
        assert f"\n## {heading}\n" in text


def harness_report(documents: int) -> HarnessReport:
    """Results of a task with 100 documents."""
    hashes = {"config_sha256": "0", "documents_sha256": "1"}
    task = TaskReceipt(
        version="1",
        documents=documents,
        documents_in_task=100,
        num_fewshot=5,
        requests=4 * documents,
        requests_cut=3,
        **hashes,
    )
    return HarnessReport(
        harness={"quiz|": {"acc": 0.25, "f1": 0.125, "odd": None}},
        stderr={"quiz|": {"acc": 0.01, "f1": 0.01}},
        exported_steps={},
        tasks={"quiz|": task},
        scored_with=ScoredWith(
            weights_sha256=weights_sha256(),
            context_length=1024,
            seed=0,
            bootstrap_resamples=1000,
            versions={"lm_eval": "0.4.13"},
        ),
    )


def test_benchmarks_are_in_the_card_with_intervals_and_in_the_model_index(project: Path) -> None:
    harness_report(documents=100).write()

    text = card()

    assert "\n\n\n" not in text
    assert "| quiz\\| | acc | 0.25 | 0.2304 to 0.2696 | 100 | 5 |" in text
    assert "| quiz\\| | f1 | 0.125 | 0.1054 to 0.1446 | 100 | 5 |" in text
    assert "| quiz\\| | odd | none |  | 100 | 5 |" in text
    assert "- quiz\\|: 3 of 400 requests are longer than the model's window, which cut their beginning." in text
    results = ModelCard.load(MAIN / "README.md").data.eval_results
    found = {result.metric_type: result for result in results if result.dataset_name == "quiz|"}
    assert {metric: result.metric_value for metric, result in found.items()} == {"acc": 0.25, "f1": 0.125}
    assert found["f1"].metric_name == "f1 (5-shot, lm-evaluation-harness), 95 % interval 0.1054 to 0.1446"


def test_a_benchmark_over_some_documents_is_no_entry_of_the_model_index(project: Path) -> None:
    harness_report(documents=99).write()

    text = card()

    assert "| quiz\\| | acc | 0.25 | 0.2304 to 0.2696 | 99 of 100 | 5 |" in text
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
    clean = read_json(Path("reports/clean.json"))
    write_json(Path("reports/clean.json"), clean | {"dropped": {hostile: {"documents": 1, "bytes": 1}}})

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
    destination, changed = (
        Destination(name="tiny", repository=changes.pop("repository", None)),
        replace(inputs, **changes),
    )
    head = metadata(params, destination, changed).to_yaml()
    return filled_card(params, destination, changed, head, with_curves=False)


@pytest.fixture
def inputs(project: Path) -> CardInputs:
    return read_inputs()


def test_the_card_of_a_model_of_text_shows_no_python(inputs: CardInputs) -> None:
    samples = [replace(sample, parses=None, body=" of words.", finished=True) for sample in inputs.samples]
    counts = inputs.generation.samples.model_copy(update={"parsed_share": None})
    generation = inputs.generation.model_copy(update={"samples": counts})

    text = written(inputs, params={"language": ["en"]}, samples=samples, generation=generation)

    assert "(no grammar to check):\n\n```text\n" in text
    assert "valid Python" not in text
    assert text.count("```python\n") == 1  # how to load it


@pytest.mark.parametrize(("prompt", "shown"), [("Es war einmal", '"Es war einmal"'), ("", '"def f"')])
def test_the_example_is_the_publishers_or_begins_as_a_held_out_document(
    inputs: CardInputs, prompt: str, shown: str
) -> None:
    samples = [replace(inputs.samples[0], signature="\n  def f\n")]

    text = written(inputs, params={"prompt": prompt}, samples=samples)

    assert f'prompt = tokenizer({shown}, return_tensors="pt")' in text
    assert 'prompt = tokenizer("", ' in written(inputs, params={"prompt": ""}, samples=[])


@pytest.mark.parametrize(
    ("signature", "shown"),
    [("- ein Punkt\n- noch einer\nEs war", "Es war"), ("Wort " * 20, " ".join(["Wort"] * 12)), ("日" * 90, "日" * 60)],
)
def test_the_example_has_whole_words_and_is_no_option_on_a_command_line(
    inputs: CardInputs, signature: str, shown: str
) -> None:
    text = written(inputs, params={"prompt": ""}, samples=[replace(inputs.samples[0], signature=signature)])

    assert f'prompt = tokenizer("{shown}", return' in text


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"parses": True, "body": " pass", "finished": False}, "(parses; cut off):"),
        ({"parses": False, "body": "\n"}, "(does not parse; the model wrote nothing):"),
    ],
)
def test_what_is_to_be_seen_of_a_completion_is_said(inputs: CardInputs, changes: Any, verdict: str) -> None:
    assert verdict in written(inputs, samples=[replace(sample, **changes) for sample in inputs.samples])


def test_the_card_does_not_speak_of_what_is_not_there(project: Path) -> None:
    text = written(replace(read_inputs(), samples=[]))

    for absent in ("## Samples", "## Benchmarks", "curves.png", "## Contact"):
        assert absent not in text
    main()
    assert not (MAIN / "curves.png").exists()


def test_weights_without_a_stated_licence_get_none(inputs: CardInputs) -> None:
    text = written(inputs, params={"license": None})

    assert "The licence of the weights: none stated." in text
    assert ModelCard(text).data.license is None


def test_there_is_no_interval_of_fewer_than_ten_documents(inputs: CardInputs) -> None:
    def of(documents: int) -> str:
        return written(inputs, evaluation=inputs.evaluation.model_copy(update={"documents": documents}))

    bounds = inputs.evaluation.interval_95.bits_per_byte
    assert bounds is not None
    low, high = bounds
    interval, value = f"{low:g} to {high:g}", f"{inputs.evaluation.bits_per_byte:g}"

    assert f"| bits per byte | {value} | {interval} |" in of(10)
    assert f"| bits per byte | {value} | too few (9) |" in of(9)
    assert "An interval needs at least 10 documents." in of(9)
    (named,) = (one.metric_name for one in ModelCard(of(9)).data.eval_results if one.metric_type == "bits_per_byte")
    assert named == "bits per byte, too few for an interval (9)"
    (named,) = (one.metric_name for one in ModelCard(of(10)).data.eval_results if one.metric_type == "bits_per_byte")
    assert named == f"bits per byte, 95 % interval {interval}"


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
    sets = {
        "web|": HeldOutMetrics(
            **evaluation.model_dump(exclude={"sets", "receipt"}) | {"bits_per_byte": 3.5, "documents": 70}
        )
    }

    changed = {"compared": {"gpt2": other}, "sets": sets, "documents": 10}
    text = written(inputs, evaluation=evaluation.model_copy(update=changed))

    low, high = evaluation.interval_95.bits_per_byte
    assert f"| web\\| | 3.5 | {low:g} to {high:g} | 70 |" in text
    assert "| gpt2 | 2.5 | -0.5 | -0.75 to -0.25 |" in text


def source(name: str, revision: str, documents: int, size: int) -> Source:
    licenses = {"": Amount(documents=documents, bytes=size)}
    return Source(name=name, revision=revision, documents=documents, bytes=size, ids="", licenses=licenses)


def test_the_largest_sources_are_listed_and_the_rest_summed_up(inputs: CardInputs) -> None:
    split = replace(inputs.train, sources=[source(f"source {n:02d}", "", 1, 1000 - n) for n in range(ROWS_SHOWN + 2)])

    rows = [line for line in written(inputs, train=split).splitlines() if line.startswith("| source ")][1:]

    assert [row.split(" | ")[0] for row in rows[:ROWS_SHOWN]] == [f"| source {n:02d}" for n in range(ROWS_SHOWN)]
    assert f"| 2 more | 2 | {2 * 1000 - 2 * ROWS_SHOWN - 1:,} |" in written(inputs, train=split)
    assert f"| none stated | {ROWS_SHOWN + 2} | {split.total.bytes:,} |" in written(inputs, train=split)


def test_two_sources_that_read_alike_are_both_counted(inputs: CardInputs) -> None:
    sources = [source("code 2", "", 3, 700), source("code", "2", 1, 600)]

    text = written(inputs, train=replace(inputs.train, sources=sources))

    assert "| code 2 | 3 | 700 |" in text
    assert "| code 2 | 1 | 600 |" in text
    assert "| none stated | 4 | 1,300 |" in text


def test_the_data_statement_says_what_was_removed_and_masked(inputs: CardInputs) -> None:
    cleaning = {"near_duplicates": None, "decontamination": {"files": ["eval/a.jsonl"], "ngram_size": 13}}
    clean = inputs.clean | {"masked": {"ip_addresses": 1200, "emails": 3, "keys": 0}}

    text = written(inputs, clean=clean, cleaning_params=cleaning)

    assert "Masked: 3 emails, 1,200 ip addresses. Trained on" in text
    assert "Near-duplicates were not removed." in text
    assert "evaluation sets were removed (files: eval/a.jsonl, ngram_size: 13)." in text
    assert "Of the evaluation items" not in text

    counts = {"evaluation_items": {"by_ngrams": 1037, "whole": 5, "not_searched": 2}}
    text = written(inputs, clean=clean | counts, cleaning_params=cleaning)

    said = "Of the evaluation items 1,037 were looked for by their n-grams, 5 shorter ones as a whole, 2 not at all."
    assert said in text


def test_the_architecture_is_that_of_the_configuration(inputs: CardInputs) -> None:
    text = written(inputs)

    for row in ("| layers | 2 |", "| width | 16 |", "| attention heads | 2 |", "| context (tokens) | 32 |"):
        assert row in text
    llama = {"model_type": "llama", "num_hidden_layers": 3, "num_key_value_heads": 1, "tie_word_embeddings": False}
    text = written(inputs, config=llama | {"vocab_size": 300})
    for row in ("| layers | 3 |", "| key-value heads | 1 |", "| input and output embeddings shared | no |"):
        assert row in text


def test_what_the_publisher_says_of_use_contact_and_authors_is_in_the_card(inputs: CardInputs) -> None:
    said = {"contact": "<https://example.org>", "authors": ["Ada Lovelace", "Alan Turing"], "limitations": ["Slow."]}

    text = written(inputs, params=said)

    assert (
        "## Intended use and limitations\n\nFor tests.\n\n- Slow.\n- It was evaluated on documents of 1 source" in text
    )
    assert "## Contact\n\n<https://example.org>\n" in text
    assert "author = {Ada Lovelace and Alan Turing}," in text
    assert "Made by Ada Lovelace, Alan Turing. The licence of the weights: apache-2.0.\n" in text


def test_the_licence_of_each_source_is_stated(inputs: CardInputs) -> None:
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
        [sys.executable, "-c", "from stages.card.render import *; draw_curves(Path('again.png'))"],
        env={"MPLBACKEND": "svg", "HOME": str(project), "PYTHONPATH": str(ROOT)},
        check=True,
    )

    assert elsewhere.returncode == 0
    assert Path("again.png").read_bytes() == picture
    assert picture.startswith(b"\x89PNG")
    assert b"Matplotlib" not in picture


def test_validation_values_of_the_training_are_told_from_those_of_the_evaluation(inputs: CardInputs) -> None:
    text = written(inputs, training=inputs.training | {"validation_loss": 3.25})

    assert "| validation loss (nats per token) | 3.25 |" in text
    assert "Validation values are of few held-out sequences" in text
    assert "Validation values" not in written(inputs)


def test_a_mixture_is_told_by_source(inputs: CardInputs) -> None:
    mixture = {"web": {"tokens": 1234, "share": 0.5, "epochs": 1.5}, "w|b": {"tokens": 2, "share": 0.25, "epochs": 2.0}}
    text = written(inputs, training=inputs.training | {"mixture": mixture})

    table = text[text.index("### Mixture") :].split("\n\n")[2]
    assert table.splitlines()[2:] == ["| web | 1,234 | 50.00% | 1.50 |", "| w\\|b | 2 | 25.00% | 2.00 |"]
    assert "\n\n\n" not in text
    assert "| mixture |" not in text
    assert "The mixture below draws from " in text
    assert "### Training split" in text
    assert "### Mixture" not in written(inputs)
    assert "### Trained on" in written(inputs)


def test_equal_bits_are_promised_only_under_their_conditions(inputs: CardInputs) -> None:
    text = written(inputs)

    assert "On CPUs of the same kind, with the same number of processes and threads" in text
    assert "On GPUs sums have no fixed order" in text
    assert "`record/source.tar.gz` holds the code that ran" in text
    assert "parrotflow reproduce PATH/revisions/REVISION" in text

    text = written(inputs, training_params={"deterministic_micro_batch_size": 4})

    assert "with any number of processes and threads" in text
    assert "On GPUs" not in text


def test_nested_parameters_become_dotted_rows() -> None:
    values = {"a": {"b": [1, 2], "c": {}}, "d": None, "e": True, "f": 1200}

    assert [(name, shown(value)) for name, value in flat(values)] == [
        ("a.b", "1, 2"),
        ("a.c", "{}"),
        ("d", "none"),
        ("e", "yes"),
        ("f", "1,200"),
    ]


def test_on_what_and_how_fast_it_was_trained_changes_no_card(project: Path) -> None:
    """As after a restore from the cache: the reports of the execution are those of another training."""
    records.execution(weights_sha256()).write()
    write_json(Path("reports/train_speed.json"), {"device": "Abacus", "weights_sha256": weights_sha256()})
    own = written(read_inputs())
    Path("reports/train_execution.json").unlink()
    Path("reports/train_speed.json").unlink()

    assert written(read_inputs()) == own
    assert "session by session, is in `record/execution.json`" in own


def test_the_card_says_how_much_the_training_computed(inputs: CardInputs) -> None:
    text = written(inputs, training=inputs.training | {"model_flops": 99e6})

    assert "about 9.9e+07 floating-point operations in training (1e+06 per token, 99 tokens)" in text


def test_hyper_parameters_versions_and_cleaning_are_those_of_the_training(inputs: CardInputs) -> None:
    training = {"seed": 7, "optimizer": {"name": "muon", "betas": [0.9, 0.95]}}
    cleaning = {"near_duplicates": {"similarity": 0.85}, "decontamination": None}

    text = written(inputs, training_params=training, cleaning_params=cleaning)

    assert "| seed | 7 |" in text
    assert "| optimizer.betas | 0.9, 0.95 |" in text
    assert f"| torch | {version('torch').split('+')[0]} |" in text
    assert "Near-duplicates were removed by MinHash (similarity: 0.85)." in text
    assert "(no decontamination)" in text


def test_the_card_of_a_repository_loads_by_its_name(inputs: CardInputs) -> None:
    text = written(inputs, repository="me/model")

    assert 'name = "me/model"' in text
    assert "Each tag of the repository is a revision" in text
    assert "url = {https://huggingface.co/me/model}" in text


def test_a_card_that_was_written_for_other_sources_is_refused(project: Path) -> None:
    write_sections(project, card__describes=["shards", "packages"])

    with pytest.raises(UserError, match=r"card.describes is \[shards, packages\], but collect.sources has mine"):
        main()
