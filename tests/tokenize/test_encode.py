from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from stages.collect.shards import write_documents
from stages.formats.documents import Document, document_id, read_documents, shard_paths
from stages.formats.tokens import Positions, TokenStore
from stages.runtime.errors import UserError
from stages.tokenize import encode
from stages.tokenize.encode import (
    Engine,
    Fast,
    FlatIds,
    Reference,
    Vocabulary,
    encode_shard,
    find_difference,
    read_vocabulary,
    require_parity,
    write_store,
)
from stages.tokenizer.train import save_trained, train_bpe
from tests.small_project import folder_bytes, function_text

HARD_TEXTS = (
    "", " ", "\n", "\t\t\n  \n", "\r\n\r\n \r", "a" * 5000, " " * 5000, "\n" * 999, "0123456789" * 100,
    "'s 't 're 've 'm 'll 'd 'S 'LL I'm we'll", "x=1;y  =   2\n\tif x:\n\t\treturn  y", "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|><|unknown|><pad></s>", "<|endoftext|", "\ufeffbyte-order mark", "\ufeff",
    "caf\u00e9 cafe\u0301 \u212b \u00c5 A\u030a", "\ufb01 \u017f \u1e9e \u00df \u0130 \u0131",
    "\u200b\u200c\u200d\u2060\u00ad", "\u00a0\u2003\u3000\u2028\u2029\u0085\u000b\u000c\u001c",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202e\u202d",
    "\u4f60\u597d\u4e16\u754c\uff0c\u3053\u3093\u306b\u3061\u306f\uc548\ub155",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f3fd\u200d\U0001f4bb \u2764\ufe0f \U0001f1e9\U0001f1ea",
    "\u0663\u0664 \u2167 \u00bd \u2075 \U0001d7d8", "z" + "\u0301" * 300,
    "\ufffd\ufffe\uffff \U0010ffff \U000e0001 \ue000", "\x00\x01\x02\x7f\x80\x9f", "".join(map(chr, range(1, 0x250))),
    "\U00010330\U00010400 \U0001d4d0 \U00020000",
)  # fmt: skip
"""Texts on which tokenizers have differed: white space, contractions, special tokens' names, combining marks, joined
emoji, right-to-left, digits of other scripts, private and unassigned code points, long runs."""

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
    train_bpe([TEXTS], 600, request.param).save(str(path))
    return path


@settings(max_examples=80)
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
    tokenizer = train_bpe([TEXTS], 300, "gpt2")
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    for engine in (Fast(tmp_path / "tokenizer.json"), Reference(tmp_path / "tokenizer.json")):
        assert engine.encode(["x = 1\n" * 10, "a"])[1].tolist() != [3, 3]
        assert engine.encode(["a"])[1].tolist() == [1]


def vocabulary(tokenizer_json: Path) -> Vocabulary:
    return Vocabulary(tokenizer_json, sha256="", size=600, eos_id=0, special_ids=frozenset())


class Wrong(Fast):
    """An engine that differs in the last id of a text."""

    def encode(self, texts: Sequence[str]) -> tuple[FlatIds, Positions]:
        ids, lengths = super().encode(texts)
        return ids + (ids == ids[-1]), lengths


@pytest.mark.parametrize("lengths", [[10], [1_250_000], [10, 1_250_000]])
def test_a_fast_engine_that_differs_is_refused_on_any_shard_with_the_other_engine(
    tokenizer_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[int]
) -> None:
    documents = [Document(document_id("x" * n), "s", "", "p", "", f"{'a word ' * (n // 7)}.") for n in lengths]
    write_documents(tmp_path, documents, 10**7)
    (shard,) = shard_paths(tmp_path)
    encode_shard(vocabulary(tokenizer_json), Fast.name, shard, tmp_path)
    monkeypatch.setattr(encode, "Fast", Wrong)

    encode_shard(vocabulary(tokenizer_json), Reference.name, shard, tmp_path)
    with pytest.raises(UserError, match=r"differs on .*: set tokenize\.engine: tokenizers in params\.yaml"):
        encode_shard(vocabulary(tokenizer_json), Wrong.name, shard, tmp_path)


def test_a_tokenizer_that_the_fast_engine_cannot_take_is_refused_with_the_other_engine(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    with pytest.raises(UserError, match=r"does not support this tokenizer .*: set tokenize\.engine: tokenizers"):
        require_parity(vocabulary(tmp_path / "tokenizer.json"), ["a"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_trained(train_bpe([[function_text(number) for number in range(20)]], 300, "gpt2"), folder)
    return folder


def write(folder: Path, documents: list[Document], tokenizer: Path, engine: str) -> Path:
    for name in ("documents", "tokens"):
        (folder / name).mkdir(parents=True)
    write_documents(folder / "documents", documents, 150)
    write_store(shard_paths(folder / "documents"), read_vocabulary(tokenizer), engine, folder / "tokens")
    return folder


@pytest.mark.parametrize("engine", [Fast, Reference])
@settings(max_examples=40)
@given(documents=DOCUMENTS, data=st.data())
def test_any_document_comes_back_from_its_tokens_and_their_bytes_do_not_depend_on_the_order_of_the_documents(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Path,
    engine: type[Engine],
    documents: list[Document],
    data: st.DataObject,
) -> None:
    place = tmp_path_factory.mktemp("stores")
    first = write(place / "first", documents, tokenizer, engine.name)
    other = write(place / "other", data.draw(st.permutations(documents)), tokenizer, engine.name)

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
