import re
import sys
import unicodedata
from collections.abc import Callable
from itertools import compress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.clean.code_points import ALPHANUMERIC, SPACE, CharacterTable, composed

CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]


@pytest.mark.parametrize(("table", "test"), [(ALPHANUMERIC, str.isalnum), (SPACE, str.isspace)])
def test_a_table_says_of_each_character_what_python_says(table: CharacterTable, test: Callable[[str], bool]) -> None:
    numbers = table[np.array(list(map(ord, CHARACTERS)), dtype=np.uint32)]

    assert list(compress(CHARACTERS, numbers)) == list(filter(test, CHARACTERS))


@given(text=st.lists(st.sampled_from(CHARACTERS)))
def test_a_characters_number_does_not_depend_on_earlier_lookups(text: list[str]) -> None:
    table, code_points = CharacterTable(re.compile(r"[^\W_]+")), np.array(list(map(ord, text)), dtype=np.uint32)

    assert [table[code_points[:count]].tolist() for count in range(len(text) + 1)] == [
        ALPHANUMERIC[code_points][:count].tolist() for count in range(len(text) + 1)
    ]


COMPOSING = (
    "aA\u00e9\u0301\u0316\u0345\u212b"  # accents, and a sign for a letter
    "\u0928\u093c\u0929\u0958\u09c7\u09be"  # Devanagari, Bengali
    "\u1112\u1161\u11ab\ud55c\uac00\ufb1d\U0001d15e"  # Korean, Hebrew, a note
)


@given(text=st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(COMPOSING))))
def test_a_text_is_composed_as_unicodedata_does(text: str) -> None:
    assert composed(text.encode()).decode() == unicodedata.normalize("NFC", text)


def test_each_character_and_its_parts_are_composed_as_unicodedata_does() -> None:
    with_parts = [one for one in CHARACTERS if unicodedata.normalize("NFD", one) != one]
    texts = [*with_parts, *(unicodedata.normalize("NFD", one) for one in with_parts), "".join(CHARACTERS)]

    assert len(with_parts) > 10_000
    assert [text for text in texts if composed(text.encode()).decode() != unicodedata.normalize("NFC", text)] == []
