import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rensa import RMinHash

from stages.clean.vectorized.fxhash import LONGEST, PADDING, fxhash


@given(
    words=st.lists(st.one_of(st.binary(min_size=1, max_size=80), st.binary(min_size=LONGEST - 2, max_size=LONGEST + 2)))
)
def test_words_have_the_hashes_that_rensa_gives_them(words: list[bytes]) -> None:
    ends = PADDING + np.cumsum(np.array(list(map(len, words)), dtype=np.int64))
    starts = ends - np.array(list(map(len, words)), dtype=np.int64)

    hashes = fxhash(bytes(PADDING) + b"".join(words) + bytes(PADDING), starts, ends)

    assert hashes.tolist() == RMinHash.hash_token_sets([words])[0]
