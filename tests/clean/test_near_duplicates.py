import itertools
import random
from functools import wraps
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.clean import minhash
from stages.clean.minhash import word_set, word_sets
from stages.clean.near_duplicates import FOUND_AT_THRESHOLD, find_clusters, rows_per_band
from stages.clean.params import NearDuplicates
from stages.formats.documents import Document, document_id, write_shard

PARAMS = NearDuplicates(similarity=0.7, permutations=128, minimum_words=5)


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
            texts.append(" ".join(draw.sample(shared, 58) + own))
    return texts


def clusters(documents: list[Document], params: NearDuplicates = PARAMS, shard_count: int = 3) -> dict[str, str]:
    """Path -> path of the document that stands for it."""
    folder = Path(f"documents-{random.random()}")
    folder.mkdir()
    shards = []
    for number, part in enumerate(np.array_split(np.arange(len(documents)), shard_count)):
        shards.append(folder / f"b{number}.parquet")
        write_shard(shards[-1], [documents[k] for k in part])
    ledger = pd.DataFrame([{"id": d.id, "source": d.source, "path": d.path} for d in documents])
    standing = find_clusters(shards, ledger, np.arange(len(documents)), params)
    return {documents[row].path: documents[other].path for row, other in standing.items()}


def as_documents(texts: list[str]) -> list[Document]:
    return [Document(document_id(text), "s", "1", f"{n:03d}.py", "MIT", text) for n, text in enumerate(texts)]


def jaccard(first: str, second: str) -> float:
    one, two = word_set(first), word_set(second)
    return len(one & two) / len(one | two)


def by_comparing_all(documents: list[Document], similarity: float) -> dict[str, str]:
    """Connected components by comparing every pair."""
    standing = {d.path: d.path for d in documents}
    for first, second in itertools.combinations(documents, 2):
        if jaccard(first.text, second.text) >= similarity:
            low, high = sorted((standing[first.path], standing[second.path]))
            standing = {path: low if other == high else other for path, other in standing.items()}
    return standing


def test_the_clusters_are_those_of_comparing_every_pair() -> None:
    documents = as_documents(family_texts())
    expected = by_comparing_all(documents, PARAMS.similarity)

    assert len(set(expected.values())) < len(documents)
    assert clusters(documents) == expected


def test_they_do_not_hang_on_the_order_of_the_documents_or_on_the_shards() -> None:
    documents = as_documents(family_texts())
    expected = clusters(documents)

    for seed in range(3):
        shuffled = documents.copy()
        random.Random(seed).shuffle(shuffled)
        assert clusters(shuffled, shard_count=seed + 1) == expected


def test_they_do_not_hang_on_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = as_documents(family_texts())
    expected = clusters(documents)
    monkeypatch.setenv("PARROTFLOW_WORKERS", "2")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))

    assert clusters(documents) == expected


def test_the_exact_similarity_decides_not_the_estimate() -> None:
    shared = [f"word{n}" for n in range(60)]
    documents = as_documents([" ".join(shared), " ".join([*shared[:54], "a", "b", "c", "d", "e", "f"])])
    similarity = jaccard(documents[0].text, documents[1].text)

    for threshold, together in ((similarity, True), (similarity + 0.001, False)):
        found = clusters(documents, PARAMS.model_copy(update={"similarity": threshold}), shard_count=1)
        assert (found["001.py"] == "000.py") is together


def test_documents_of_few_words_are_not_compared() -> None:
    documents = as_documents(["a b c d", "a b c d\n"])

    assert clusters(documents, shard_count=1) == {"000.py": "000.py", "001.py": "001.py"}
    assert clusters(documents, PARAMS.model_copy(update={"minimum_words": 4}), 1)["001.py"] == "000.py"


def test_a_new_document_computes_the_words_of_its_own_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = as_documents(family_texts())
    clusters(documents, shard_count=5)
    computed: list[Path] = []
    real = minhash._compute

    @wraps(real)  # the code that computes a shard is found by its module
    def counting(permutations: int, shard: Path, folder: Path) -> None:
        computed.append(shard)
        real(permutations, shard, folder)

    monkeypatch.setattr(minhash, "_compute", counting)
    documents[-1] = as_documents(["something new with words of its own"])[0]
    clusters(documents, shard_count=5)

    assert len(computed) == 1


@pytest.mark.parametrize("permutations", [64, 128, 256])
@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.85, 1.0])
def test_bands_find_a_pair_at_the_threshold_almost_surely(permutations: int, similarity: float) -> None:
    rows = rows_per_band(permutations, similarity)

    assert 1 - (1 - similarity**rows) ** (permutations // rows) >= FOUND_AT_THRESHOLD


@pytest.mark.parametrize(
    ("text", "expected"),
    [("def f(x): return x", {b"def", b"f", b"x", b"return"}), ("été_1 x-y", {b"t", b"_1", b"x", b"y"}), ("()", set())],
)
def test_words_are_runs_of_ascii_letters_digits_and_underscores(text: str, expected: set[bytes]) -> None:
    assert word_set(text) == expected


@given(chunks=st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])))), skipped=st.integers(0, 3))
def test_the_words_of_a_column_are_those_of_its_texts(chunks: list[list[str]], skipped: int) -> None:
    column = pa.chunked_array([pa.array(chunk, pa.string()).slice(skipped) for chunk in chunks], pa.string())

    assert word_sets(column) == [word_set(text) for text in column.to_pylist()]
