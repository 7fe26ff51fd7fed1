import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers

from stages.clean.__main__ import main as clean
from stages.collect.__main__ import main as collect
from stages.formats.documents import read_documents, shard_paths, write_shard
from stages.formats.reports import read_json
from stages.runtime.errors import UserError
from stages.tokenizer import train as training
from stages.tokenizer.__main__ import main
from stages.tokenizer.train import (
    characters,
    counted_documents,
    save_trained,
    shard_texts,
    take_over,
    train_bpe,
    train_on_documents,
)
from tests.small_project import ROOT, document, folder_bytes, write_corpus, write_project

TOKENIZER = Path("data/tokenizer")
PATTERNS = ["gpt2", "digits", "gpt4"]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    write_corpus(tmp_path, 12)
    Path("corpus/unicode.py").write_text("# Grüße, 世界 \U0001f40d\nname = 'é'\n", encoding="utf-8")
    write_project(tmp_path)
    collect()
    clean()


def make(**changes: Any) -> Tokenizer:
    write_project(Path(), **{f"tokenizer__{name}": value for name, value in changes.items()})
    main()
    return Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_any_text_survives_encoding_and_decoding(pattern: str) -> None:
    tokenizer = make(pattern=pattern)

    for text in ("def f(x):\n    return x + 12345\n", "naïve 日本語 \U0001f99c\t\r\n \x00", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_transformers_loads_it_with_its_special_tokens(kind: str) -> None:
    from transformers import AutoTokenizer

    ours = make(kind=kind)
    loaded = AutoTokenizer.from_pretrained(str(TOKENIZER))
    text = "def function_1_0(value):\n    return value\n"

    assert loaded(text)["input_ids"] == ours.encode(text).ids
    assert loaded.decode(ours.encode(text).ids) == text
    assert loaded.eos_token == loaded.bos_token == "<|endoftext|>"
    assert loaded.eos_token_id == 0
    assert len(loaded) == ours.get_vocab_size()


def test_the_longest_token_is_told_in_characters_of_the_text() -> None:
    """Not in bytes, as each of which byte-level BPE writes a character."""
    for number in range(40):
        Path(f"corpus/cheer{number}.py").write_text(f"{'日' * 20} = {number}\n", encoding="utf-8")
    collect()
    clean()
    longest = max(make(vocabulary_size=400).get_vocab(), key=len)
    assert len(longest) == 60
    assert read_json(Path("reports/tokenizer.json"))["longest_token_characters"] == 20


def test_without_a_cache_it_has_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    trained = folder_bytes(TOKENIZER)
    monkeypatch.setenv("PARROTFLOW_SHARD_CACHE_GB", "0")
    make()

    assert folder_bytes(TOKENIZER) == trained


@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_does_not_depend_on_the_order_of_the_texts(pattern: str) -> None:
    texts = [item.text for item in read_documents(Path("data/clean/train"))]
    orders = [texts, texts[::-1], sorted(texts, key=len)]

    assert len({train_bpe([order], 400, pattern).to_str() for order in orders}) == 1
    assert len({characters([order]).to_str() for order in orders}) == 1
    assert characters([[text] for text in texts]).to_str() == characters([texts]).to_str()


def test_it_does_not_depend_on_the_number_of_threads() -> None:
    results = []
    for threads in ("1", "4"):
        environment = os.environ | {
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "true",
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run([sys.executable, "-m", "stages.tokenizer"], env=environment, check=True)
        results.append(folder_bytes(TOKENIZER))

    assert results[0] == results[1]


def test_it_learns_from_the_train_side_alone() -> None:
    make()
    before = folder_bytes(TOKENIZER)
    shutil.rmtree("data/clean/validation")
    make()

    assert folder_bytes(TOKENIZER) == before


def test_a_limit_counts_the_first_documents_by_id_and_no_more() -> None:
    train_split = Path("data/clean/train")
    sizes = [item.size for item in read_documents(train_split)]

    counted = counted_documents(shard_paths(train_split), sum(sizes[:4]) + 1)
    taken = [text for one in counted for text in shard_texts(*one)]

    assert taken == [item.text for item in read_documents(train_split)][:4]
    assert make(training_bytes=sum(sizes[:4])).to_str() == train_bpe([taken], 300, "gpt2").to_str()


def test_an_edit_outside_of_the_sample_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    train_split = Path("data/clean/train")
    limit = sum(item.size for item in list(read_documents(train_split))[:4])
    shards = shard_paths(train_split)
    before = train_on_documents(shards, limit, 300, "gpt2").to_str()
    write_shard(shards[-1], [document("an edited text")])
    monkeypatch.setattr(training, "train_bpe", None)

    assert train_on_documents(shards, limit, 300, "gpt2").to_str() == before
    with pytest.raises(TypeError):
        train_on_documents(shards, limit, 290, "gpt2")


def test_a_limit_below_the_first_document_is_refused_with_its_size() -> None:
    first = next(iter(read_documents(Path("data/clean/train")))).size
    said = f"tokenizer.training_bytes = {first - 1:,}: the first document alone has {first:,} bytes"

    with pytest.raises(UserError, match=said):
        make(training_bytes=first - 1)
    assert not TOKENIZER.exists()


def test_the_vocabulary_has_the_size_that_was_asked_for_or_the_run_says_what_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert make(vocabulary_size=290).get_vocab_size() == read_json(Path("reports/tokenizer.json"))["vocabulary_size"]
    assert capsys.readouterr().out == "a vocabulary of 290 tokens\n"

    size = make(vocabulary_size=2**20).get_vocab_size()
    said = capsys.readouterr().out
    assert f"the text ran out of pairs to merge: the vocabulary has {size:,} of 1,048,576 tokens. Add text" in said


def test_every_character_of_the_train_side_is_a_token_and_others_are_unknown() -> None:
    tokenizer = make(kind="characters")
    seen = set("".join(item.text for item in read_documents(Path("data/clean/train"))))

    assert set(tokenizer.get_vocab()) == seen | {"<|endoftext|>", "<|unknown|>"}
    assert len(tokenizer.encode("def f").ids) == 5
    assert tokenizer.encode("\u2603").ids == [tokenizer.token_to_id("<|unknown|>")]


def test_an_existing_tokenizer_is_taken_over_the_same_bytes_from_any_place(tmp_path: Path) -> None:
    original, results = make(), []
    for name in ("first", "second"):
        shutil.copytree(TOKENIZER, tmp_path / name)
        taken = make(kind="existing", folder=str(tmp_path / name))
        results.append(folder_bytes(TOKENIZER))
        assert taken.encode("def f(x):").ids == original.encode("def f(x):").ids
        shutil.rmtree(TOKENIZER)
        make()

    assert results[0] == results[1]


def test_an_existing_tokenizer_is_loaded_once_until_one_of_its_files_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    shutil.copytree(TOKENIZER, "own")
    first = take_over(Path("own"), Path("first"))
    Path("own/model.safetensors").write_bytes(b"weights")
    monkeypatch.setitem(sys.modules, "transformers", None)  # an import fails

    assert take_over(Path("own"), Path("second")).to_str() == first.to_str()
    assert folder_bytes(Path("second")) == folder_bytes(Path("first"))
    Path("own/chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(ImportError):
        take_over(Path("own"), Path("third"))


def test_an_existing_tokenizer_that_loses_text_is_warned_of_before_anything_is_trained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make()
    shutil.copytree(TOKENIZER, "whole")
    lossy = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    lossy.normalizer = normalizers.Replace("r", "l")
    shutil.copytree(TOKENIZER, "lossy")
    lossy.save("lossy/tokenizer.json")

    make(kind="existing", folder="whole")
    assert "WARNING" not in capsys.readouterr().out
    make(kind="existing", folder="lossy")

    count = len(shard_texts(shard_paths(Path("data/clean/train"))[0]))
    assert f"WARNING: {count} of {count} documents change when encoded and decoded" in capsys.readouterr().out


def test_a_folder_that_holds_no_tokenizer_that_can_be_used_is_refused() -> None:
    make()
    shutil.move(TOKENIZER, "other")
    config = json.loads(Path("other/tokenizer_config.json").read_text())
    del config["eos_token"]
    Path("other/tokenizer_config.json").write_text(json.dumps(config))
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")

    for folder, said in (
        ("nowhere", "nowhere is not a folder; give one that `save_pretrained` wrote"),
        ("model", "model holds no tokenizer that transformers can load: "),
        ("other", "other has no eos_token to close each document with"),
    ):
        with pytest.raises(UserError, match=rf"^tokenizer\.folder: {said}"):
            make(kind="existing", folder=folder)
        assert not TOKENIZER.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "existing"}, "`folder` is required for `kind: existing`"),
        ({"folder": "somewhere"}, "`folder` is required for `kind: existing`"),
    ],
)
def test_parameters_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(**changes)


@pytest.mark.parametrize("class_name", ["GPT2Tokenizer", "PreTrainedTokenizerFast"])
def test_a_normalizer_is_kept_or_the_tokenizer_is_refused(class_name: str) -> None:
    folder = Path("own")
    folder.mkdir()
    own = train_bpe([["def f(x): return x"] * 10], 270, "gpt2")
    own.normalizer = normalizers.NFC()
    save_trained(own, folder)
    config = read_json(folder / "tokenizer_config.json") | {"tokenizer_class": class_name}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

    if class_name == "GPT2Tokenizer":
        with pytest.raises(UserError, match="GPT2Tokenizer replaces its normalizer, so it would give other ids; set"):
            take_over(folder, Path("taken"))
    else:
        assert isinstance(take_over(folder, Path("taken")).normalizer, normalizers.NFC)
