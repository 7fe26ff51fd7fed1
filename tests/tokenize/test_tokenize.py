import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from stages.clean.__main__ import main as clean
from stages.collect.__main__ import main as collect
from stages.formats.documents import read_documents
from stages.formats.reports import read_json
from stages.formats.tokens import TokenStore
from stages.runtime.errors import UserError
from stages.tokenize.__main__ import main
from stages.tokenizer.__main__ import main as tokenizer
from tests.small_project import folder_bytes, write_corpus, write_project

TOKENS = Path("data/tokens")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")
    write_corpus(tmp_path, 30)
    Path("corpus/special.py").write_text("END = '<|endoftext|>'\nprint(END)\n")
    make()


def make(**changes: Any) -> None:
    write_project(Path(), **changes)
    for stage in (collect, clean, tokenizer, main):
        stage()


def decoded(split: str) -> dict[str, str]:
    """Path -> text of every document in the token store, by the tokenizer that made it."""
    library = Tokenizer.from_file("data/tokenizer/tokenizer.json")
    store = TokenStore(TOKENS / split)
    texts = {}
    for number in range(store.manifest.documents):
        ids = store.document(number).tolist()
        assert ids[-1] == store.manifest.eos_id
        texts[store.document_info(number)["path"]] = library.decode(ids[:-1], skip_special_tokens=False)
    return texts


@pytest.mark.parametrize("changes", [{}, {"tokenizer__kind": "characters", "tokenize__engine": "tokenizers"}])
def test_every_document_is_found_again_in_the_token_store(changes: dict[str, Any]) -> None:
    make(**changes)

    assert decoded("train") == {item.path: item.text for item in read_documents(Path("data/clean/train"))}
    assert len(decoded("validation")) == len(list(read_documents(Path("data/clean/validation"))))


def test_the_manifest_and_the_report_say_what_is_there() -> None:
    report = read_json(Path("reports/tokenize.json"))
    for split in ("train", "validation"):
        store = TokenStore(TOKENS / split)
        store.verify()
        documents = list(read_documents(Path("data/clean") / split))
        assert store.manifest.engine == "fastokens"
        assert report["engine"].startswith("fastokens ")
        assert store.manifest.vocab_size == 300
        assert report[split]["tokens"] == store.manifest.tokens == len(store.read(0, store.manifest.tokens))
        assert report[split]["bytes"] == store.manifest.bytes == sum(item.size for item in documents)
        info = store.document_info(0)
        assert (info["id"], info["source"], info["license"]) == (documents[0].id, "mine", "MIT")


def test_the_bytes_do_not_depend_on_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = folder_bytes(TOKENS)
    shutil.rmtree(".parrotflow")
    shutil.rmtree(TOKENS)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "8")
    main()

    assert folder_bytes(TOKENS) == alone


def run_with_the_same_tokenizer() -> None:
    for stage in (collect, clean, main):
        stage()


def cached_results() -> set[str]:
    """STAGE/HASH of everything that was ever computed for a shard."""
    return {f"{path.parts[-3]}/{path.name}" for path in Path(".parrotflow/cache").glob("*/??/*")}


def test_an_edited_document_recomputes_its_own_buckets_alone_to_the_bytes_of_a_run_from_nothing() -> None:
    changes = {
        "clean__near_duplicates": {"similarity": 0.85, "minimum_words": 500},
        "clean__decontamination": {"files": ["passage.jsonl"], "fields": ["text"], "ngram_size": 3, "minimum_words": 3},
    }
    Path("passage.jsonl").write_text('{"text": "words of an evaluation"}\n')
    make(**changes)
    before = cached_results()
    edited = Path("corpus/module_003.py")
    edited.write_text(edited.read_text() + "\nEDITED = True\n")
    run_with_the_same_tokenizer()

    computed = [entry.partition("/")[0] for entry in cached_results() - before]
    stages = ["contamination", "documents", "features", "splits", "tokens", "words"]
    assert len(list(Path("data/documents").iterdir())) > 6
    assert sorted(set(computed)) == stages
    # The bucket that its old text leaves, and the one that its new text comes to.
    assert [stage for stage in stages if computed.count(stage) > 2] == []

    result = folder_bytes(Path("data")) | folder_bytes(Path("reports"))
    for folder in (".parrotflow", "data/documents", "data/clean", "data/tokens"):
        shutil.rmtree(folder)
    run_with_the_same_tokenizer()
    assert folder_bytes(Path("data")) | folder_bytes(Path("reports")) == result


def test_another_tokenizer_never_meets_the_ids_of_the_first() -> None:
    make(tokenizer__vocabulary_size=280)

    assert decoded("train") == {item.path: item.text for item in read_documents(Path("data/clean/train"))}


def test_a_tokenizer_folder_that_is_none_or_has_no_end_of_sequence_token_is_refused() -> None:
    path = Path("data/tokenizer/tokenizer_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "</s>"}))
    with pytest.raises(UserError, match=r"tokenizer_config\.json has no eos_token of the vocabulary"):
        main()

    Path("data/tokenizer/tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"data/tokenizer: no tokenizer \(.*\); run `dvc repro tokenizer`"):
        main()


def test_a_tokenizer_that_turns_text_into_a_special_token_is_refused() -> None:
    path = Path("data/tokenizer/tokenizer.json")
    library = Tokenizer.from_file(str(path))
    library.add_special_tokens(["def"])
    values = json.loads(library.to_str())
    letters = values["model"]["vocab"]
    values["added_tokens"].append(values["added_tokens"][0] | {"id": letters["d"], "content": "d"})
    values["added_tokens"].sort(key=lambda token: token["id"])
    path.write_text(json.dumps(values))

    with pytest.raises(UserError, match="encoded text as a special token"):
        main()
