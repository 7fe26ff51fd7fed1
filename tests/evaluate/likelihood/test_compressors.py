import gzip
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.evaluate.likelihood.compressors import compress


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1).filter(any))
def test_the_documents_are_compressed_as_one_stream(texts: list[str]) -> None:
    data = "".join(texts).encode()

    sizes = compress(texts)

    assert sizes.gzip_9 == pytest.approx(8 * len(gzip.compress(data, 9)) / len(data))
    assert sizes.xz_9 == pytest.approx(8 * len(lzma.compress(data, preset=9)) / len(data))
