import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages.clean.near_duplicates import FOUND_AT_THRESHOLD, Corpus, find_near_duplicates, rows_per_band
from stages.clean.params import NearDuplicates
from stages.clean.words import PERMUTATIONS, word_list
from stages.formats.documents import Document, document_id, write_shard

PARAMS = NearDuplicates(similarity=0.7, minimum_words=5)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "1")


def family_texts() -> list[str]:
    """Families of texts that share most of their words, and loners."""
    draw = random.Random(1)
    texts = []
    for family in range(12):
        shared = [f"word{family}x{draw.randrange(10**6)}" for _ in range(60)]
        for member in range(family % 4 + 1):
            own = [f"own{family}x{member}x{k}" for k in range(draw.randrange(12))]
            left_out = draw.sample(shared, 2)
            texts.append(" ".join([*(word for word in shared if word not in left_out), *own]))
    return texts


def near_duplicates(
    documents: list[Document], params: NearDuplicates = PARAMS, shard_count: int = 3
) -> dict[str, tuple[str, float]]:
    """Path of what is dropped -> path of the kept document that it resembles, similarity."""
    folder = Path(f"documents-{random.random()}")
    folder.mkdir()
    shards = []
    for number, part in enumerate(np.array_split(np.arange(len(documents)), shard_count)):
        shards.append(folder / f"b{number}.parquet")
        write_shard(shards[-1], [documents[k] for k in part])
    ledger = pd.DataFrame([{"id": d.id, "source": d.source, "path": d.path} for d in documents])
    found = find_near_duplicates(shards, ledger, np.arange(len(documents)), params)
    return {documents[row].path: (documents[other].path, similarity) for row, (other, similarity) in found.items()}


def as_documents(texts: list[str]) -> list[Document]:
    return [Document(document_id(text), "s", "1", f"{n:03d}.py", "MIT", text) for n, text in enumerate(texts)]


def jaccard(first: str, second: str) -> float:
    one, two = set(word_list(first)), set(word_list(second))
    return len(one & two) / len(one | two)


def chain_texts(links: int) -> list[str]:
    """Texts of 60 words of which each shares 54 with the next: 0.82 similar, and 0.67 with the one after it."""
    return [" ".join(f"word{6 * link + n}" for n in range(60)) for link in range(links)]


def greedy_by_comparing_all(documents: list[Document], similarity: float) -> set[str]:
    """The paths of what is kept if each document is kept unless it resembles an earlier one that is kept."""
    kept: list[Document] = []
    for document in documents:
        if not any(jaccard(document.text, other.text) >= similarity for other in kept):
            kept.append(document)
    return {document.path for document in kept}


@pytest.mark.usefixtures("few_descriptors")
def test_there_may_be_more_shards_than_a_process_may_open_files() -> None:
    documents = as_documents([*family_texts(), *chain_texts(60)])

    assert near_duplicates(documents, shard_count=80) == near_duplicates(documents, shard_count=1)


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.8])
def test_a_document_is_dropped_if_and_only_if_it_resembles_one_that_is_kept(similarity: float) -> None:
    documents = as_documents(family_texts() + chain_texts(9))
    found = near_duplicates(documents, PARAMS.model_copy(update={"similarity": similarity}))

    assert {one.path for one in documents} - set(found) == greedy_by_comparing_all(documents, similarity)
    texts = {document.path: document.text for document in documents}
    for path, (resembled, found_similarity) in found.items():
        assert found_similarity == jaccard(texts[path], texts[resembled]) >= similarity
        assert resembled not in found


def test_they_do_not_depend_on_the_order_of_the_documents_or_on_the_shards() -> None:
    documents = as_documents(family_texts() + chain_texts(6))
    expected = near_duplicates(documents)

    for seed in range(3):
        shuffled = documents.copy()
        random.Random(seed).shuffle(shuffled)
        assert near_duplicates(shuffled, shard_count=seed + 1) == expected


def test_the_exact_similarity_decides_not_the_estimate() -> None:
    shared = [f"word{n}" for n in range(60)]
    documents = as_documents([" ".join(shared), " ".join([*shared[:54], "a", "b", "c", "d", "e", "f"])])
    similarity = jaccard(documents[0].text, documents[1].text)

    for threshold, together in ((similarity, True), (similarity + 0.001, False)):
        found = near_duplicates(documents, PARAMS.model_copy(update={"similarity": threshold}), shard_count=1)
        assert (found.keys() == {"001.py"}) is together


def test_documents_of_few_words_are_not_compared() -> None:
    documents = as_documents(["a b c d", "a b c d\n"])

    assert near_duplicates(documents, shard_count=1) == {}
    assert near_duplicates(documents, PARAMS.model_copy(update={"minimum_words": 4}), 1).keys() == {"001.py"}


@pytest.mark.parametrize("similarity", [0.3, 0.7, 0.85, 1.0])
def test_bands_find_a_pair_at_the_threshold_almost_surely(similarity: float) -> None:
    rows = rows_per_band(similarity)

    assert 1 - (1 - similarity**rows) ** (PERMUTATIONS // rows) >= FOUND_AT_THRESHOLD


@pytest.mark.parametrize("similarity", [0.7, 0.85])
def test_copies_in_which_words_are_exchanged_at_random_places_are_found(similarity: float) -> None:
    draw = random.Random(5)
    words = [f"word{n}" for n in range(600)]
    exchanged = int(600 * (1 - 2 * (similarity + 0.01) / (1 + similarity + 0.01)))
    copies = []
    for copy in range(40):
        changed = {place: f"other{copy}x{place}" for place in draw.sample(range(600), exchanged)}
        copies.append(" ".join(changed.get(place, word) for place, word in enumerate(words)))
    documents = as_documents([" ".join(words), *copies])

    found = near_duplicates(documents, PARAMS.model_copy(update={"similarity": similarity}))

    assert len(found) >= 38


def licensed(texts: list[str]) -> list[Document]:
    notice = "Copyright 2024 the authors, licensed under the Apache License, Version 2.0\n"
    return as_documents([notice + text for text in texts])


def test_unrelated_texts_of_other_scripts_with_one_license_line_are_not_near_duplicates() -> None:
    draw = random.Random(2)
    chinese = ["".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(200)) for _ in range(15)]
    letters = [chr(code) for code in range(0x430, 0x450)]
    russian = [" ".join("".join(draw.choices(letters, k=7)) for _ in range(60)) for _ in range(15)]
    documents = licensed(chinese + russian)

    assert near_duplicates(documents) == {}


def test_alike_texts_of_other_scripts_are_near_duplicates() -> None:
    draw = random.Random(3)
    text = "".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(300))

    assert near_duplicates(as_documents([text, text[:-5]]), shard_count=1).keys() == {"001.py"}
    assert near_duplicates(as_documents([text, text[::-1]]), shard_count=1) == {}


def records(draw: random.Random) -> str:
    rows = [(draw.randrange(40), draw.randrange(60), draw.choice("JFMASOND")) for _ in range(200)]
    return "".join(f"item {item} price {price} paid in {month}\n" for item, price, month in rows)


def sums(draw: random.Random) -> str:
    pairs = [(draw.randrange(30), draw.randrange(30)) for _ in range(300)]
    return "".join(f"{one} + {two} = {one + two}\n" for one, two in pairs)


def words_of_a_hundred(draw: random.Random) -> str:
    return " ".join(f"w{draw.randrange(98)}" for _ in range(720))


@pytest.mark.parametrize("write", [records, sums, words_of_a_hundred])
def test_unlike_documents_of_a_small_vocabulary_are_no_near_duplicates_and_edited_copies_are(
    write: Callable[[random.Random], str],
) -> None:
    draw = random.Random(4)
    texts = [write(draw) for _ in range(30)]
    edited = texts[3][: len(texts[3]) * 9 // 10]
    assert jaccard(texts[0], texts[1]) > 0.85

    found = near_duplicates(as_documents([*texts, edited]), PARAMS.model_copy(update={"similarity": 0.85}))

    assert {path: kept for path, (kept, _) in found.items()} == {"030.py": "003.py"}


def comparisons(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many documents are kept, and how many pairs were compared."""
    compared: list[int] = []
    similarities = Corpus.similarities

    def counted(corpus: Corpus, document: int, others: Sequence[int]) -> Any:
        compared.append(len(others))
        return similarities(corpus, document, others)

    with monkeypatch.context() as patched:
        patched.setattr(Corpus, "similarities", counted)
        return len(texts) - len(near_duplicates(as_documents(texts))), sum(compared)


def test_comparisons_grow_in_proportion_to_the_number_of_alike_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = " ".join(f"word{n}" for n in range(100))

    for size in (100, 800):
        assert comparisons([f"{shared} own{n}" for n in range(size)], monkeypatch) == (1, size - 1)


def test_documents_that_share_boilerplate_are_compared_with_a_bounded_number_and_the_run_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Just below the threshold, so that nearly all are kept."""
    monkeypatch.setattr("stages.clean.near_duplicates.MAX_KEPT", 20)
    shared = " ".join(f"word{n}" for n in range(21))

    kept, few = comparisons([f"{shared} a{n} b{n} c{n} d{n} e{n}" for n in range(100)], monkeypatch)
    _, many = comparisons([f"{shared} a{n} b{n} c{n} d{n} e{n}" for n in range(400)], monkeypatch)

    assert kept == 100
    assert many < 10 * few  # comparing every pair would be 16 times as many
    assert "share boilerplate with more than 20 dissimilar ones" in capsys.readouterr().out
