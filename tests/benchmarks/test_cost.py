"""The prices of a corpus."""

from itertools import islice, starmap

import pytest

from benchmarks.cost import STAGES, Corpus, Cost, figures, texts
from stages.formats.documents import Document


def measured(megabytes: int, documents: int, kept: float = 1.0) -> Cost:
    """Collect takes 1 s, 10 s a GB and 100 s a million documents; tokenize 20 s a GB that is kept."""
    size = megabytes / 1000
    seconds = dict.fromkeys(STAGES, 1.0) | {"collect": 1 + 10 * size + documents / 10_000, "tokenize": 20 * size * kept}
    return Cost(Corpus(megabytes), size, documents, size * kept, int(documents * kept), seconds)


FITTED = list(starmap(measured, [(50, 3_000), (50, 40_000), (150, 10_000), (300, 20_000, 0.5), (900, 50_000)]))


def test_prices_are_those_by_which_the_seconds_were_made_and_foretell_another_corpus() -> None:
    found = {figure.figure: figure for figure in figures(FITTED, measured(2_000, 130_000, 0.5))}

    collect = [found[f"collect: price of {what}"].ours for what in ("start-up", "a GB of text", "a million documents")]
    assert collect == pytest.approx([1, 10, 100])
    assert found["collect: price of a GB of text"].runs == 5
    assert found["tokenize: price of a GB of text"].ours == pytest.approx(20)
    for stage in ("collect", "tokenize"):
        assert found[f"{stage}: prices / measured, 2,000 MB in 130,000 documents"].ours == pytest.approx(1)
    assert found["tokenizer: 300 MB in 20,000 documents, 50% kept"].ours == 1.0


def test_a_price_of_nothing_is_called_at_the_bound() -> None:
    dearer_by_the_gigabyte = [measured(50, 3_000), measured(150, 10_000), measured(900, 50_000)]
    for cost in dearer_by_the_gigabyte:
        cost.seconds["tokenize"] = 20 * cost.gigabytes_kept**2

    (bound,) = (
        one for one in figures(dearer_by_the_gigabyte, FITTED[0]) if "tokenize: price of start-up" in one.figure
    )

    assert (bound.figure, bound.ours) == ("tokenize: price of start-up, at the bound", 0)


def test_a_copy_of_the_installed_source_has_other_words_of_the_same_length(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def push(queue):\n    return queue\n" * 100
    document = Document("", "", "", "package/module.py", "", text)
    monkeypatch.setattr("benchmarks.cost.python_documents", lambda limit: iter([document]))

    (name, first), (_, copy) = list(islice(texts(Corpus(1)), 2))

    assert (name, first) == ("0/package/module-0.py", text)
    assert len(copy) == len(first)
    assert set(copy.split()) & set(first.split()) == {"def"}
    assert [len(part) for _, part in islice(texts(Corpus(1, 1_500)), 3)] == [1_500, 1_500, len(text) - 3_000]
