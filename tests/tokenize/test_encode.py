import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from stages.collect.trie import write_documents
from stages.formats.documents import Document, document_id, read_documents, shard_paths
from stages.formats.tokens import Positions, TokenStore
from stages.tokenize import parity
from stages.tokenize.encode import (
    Encoding,
    Engine,
    Fast,
    FlatIds,
    Reference,
    read_vocabulary,
    write_store,
)
from stages.tokenize.parity import HARD_TEXTS, choose_engine, find_difference
from stages.tokenizer.train import characters, save_trained, train_by_reference
from tests.small_project import folder_bytes, function_text

TEXTS = [function_text(number) for number in range(20)] + [text for text in HARD_TEXTS if text]

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
DOCUMENTS = st.lists(st.builds(lambda *facts: Document(document_id(facts[-1]), *facts), *[ANY_TEXT] * 5), max_size=15)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("project"))
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")


@pytest.fixture(scope="module", params=["gpt2", "digits", "gpt4"])
def tokenizer_json(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_by_reference([TEXTS], 600, request.param).save(str(path))
    return path


@settings(max_examples=80, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), max_size=5))
def test_both_engines_give_the_same_ids(tokenizer_json: Path, texts: list[str]) -> None:
    assert find_difference(Fast(tokenizer_json), Reference(tokenizer_json), texts) is None


def test_both_engines_give_the_same_ids_on_hard_texts(tokenizer_json: Path) -> None:
    assert find_difference(Fast(tokenizer_json), Reference(tokenizer_json), HARD_TEXTS) is None


@pytest.mark.parametrize("engine", [Fast, Reference])
def test_the_name_of_a_special_token_in_a_text_is_text(tokenizer_json: Path, engine: type[Engine]) -> None:
    ids, lengths = engine(tokenizer_json).encode(["a<|endoftext|>b", "", "<|endoftext|>"])
    decoded = Tokenizer.from_file(str(tokenizer_json)).decode(ids[: lengths[0]].tolist(), skip_special_tokens=False)

    assert 0 not in ids.tolist()
    assert decoded == "a<|endoftext|>b"
    assert lengths[1] == 0


def test_truncation_and_padding_that_a_tokenizer_brings_are_off(tmp_path: Path) -> None:
    tokenizer = train_by_reference([TEXTS], 300, "gpt2")
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    for engine in (Fast(tmp_path / "tokenizer.json"), Reference(tmp_path / "tokenizer.json")):
        assert engine.encode(["x = 1\n" * 10, "a"])[1].tolist() != [3, 3]
        assert engine.encode(["a"])[1].tolist() == [1]


def test_the_fast_engine_is_taken_where_it_agrees(tokenizer_json: Path) -> None:
    assert choose_engine("fastokens", tokenizer_json, [], 0) == Fast.name
    assert choose_engine("tokenizers", tokenizer_json, [], 0) == Reference.name


def test_where_the_fast_engine_differs_the_reference_is_taken_and_the_log_says_so(
    tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Wrong(Fast):
        def encode(self, texts: Sequence[str]) -> tuple[FlatIds, Positions]:
            ids, lengths = super().encode(texts)
            return ids + (ids == ids[-1] if len(ids) else 0), lengths

    monkeypatch.setattr(parity, "Fast", Wrong)

    assert choose_engine("fastokens", tokenizer_json, [], 0) == Reference.name
    assert "differs on" in capsys.readouterr().out


def test_a_tokenizer_that_the_fast_engine_cannot_take_is_encoded_by_the_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    characters([TEXTS]).save(str(tmp_path / "characters.json"))

    assert choose_engine("fastokens", tmp_path / "tokenizer.json", [], 0) == Reference.name
    assert f"{Reference.name}, slower" in capsys.readouterr().out
    chosen = choose_engine("fastokens", tmp_path / "characters.json", [], 0)
    ids, _ = (Fast if chosen == Fast.name else Reference)(tmp_path / "characters.json").encode(["def"])
    vocabulary = json.loads((tmp_path / "characters.json").read_text())["model"]["vocab"]
    assert ids.tolist() == [vocabulary[letter] for letter in "def"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_trained(train_by_reference([[function_text(number) for number in range(20)]], 300, "gpt2"), folder)
    return folder


def write(folder: Path, documents: list[Document], encoding: Encoding) -> Path:
    for name in ("documents", "tokens"):
        (folder / name).mkdir(parents=True)
    write_documents(folder / "documents", documents, 150)
    write_store(shard_paths(folder / "documents"), encoding, folder / "tokens")
    return folder


@pytest.mark.parametrize("engine", [Fast, Reference])
@settings(max_examples=40, deadline=None)
@given(documents=DOCUMENTS, data=st.data())
def test_any_document_comes_back_from_its_tokens_and_their_bytes_do_not_depend_on_the_order_of_the_documents(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Path,
    engine: type[Engine],
    documents: list[Document],
    data: st.DataObject,
) -> None:
    place = tmp_path_factory.mktemp("stores")
    encoding = Encoding(read_vocabulary(tokenizer), engine.name)
    first = write(place / "first", documents, encoding)
    other = write(place / "other", data.draw(st.permutations(documents)), encoding)

    assert folder_bytes(first) == folder_bytes(other)
    assert sorted(read_documents(first / "documents"), key=repr) == sorted(documents, key=repr)
    library = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    store = TokenStore(first / "tokens")
    store.verify()
    infos = list(store.document_infos())
    assert infos == [store.document_info(number) for number in range(len(documents))]
    found = []
    for number, info in enumerate(infos):
        text = library.decode(store.document(number)[:-1].tolist(), skip_special_tokens=False)
        assert info.pop("bytes") == len(text.encode())
        found.append(Document(**info, text=text))
    assert found == list(read_documents(first / "documents"))
