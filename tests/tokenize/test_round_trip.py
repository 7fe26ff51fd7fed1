from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.collect.trie import write_documents
from stages.formats.documents import Document, document_id, read_documents, shard_paths
from stages.formats.tokens import TokenStore
from stages.tokenize.encode import Encoding, read_vocabulary, write_store
from stages.tokenize.engines import Engine, Fast, Reference
from stages.tokenizer.bpe import train_bpe
from stages.tokenizer.train import save_trained
from tests.small_project import folder_bytes, function_text

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
DOCUMENTS = st.lists(st.builds(lambda *facts: Document(document_id(facts[-1]), *facts), *[ANY_TEXT] * 5), max_size=15)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("project"))
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_trained(train_bpe([[function_text(number) for number in range(20)]], 300, "gpt2"), folder)
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
