import re
import sys
import unicodedata
from collections.abc import Callable
from itertools import compress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.clean.code_points import ALPHANUMERIC, SPACE, CharacterTable, beyond_ascii, is_composed

CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
DECOMPOSED = sorted({part for character in CHARACTERS for part in unicodedata.normalize("NFD", character)[1:]})


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


@given(
    text=st.text(
        st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("aeno"), st.sampled_from(DECOMPOSED))
    )
)
def test_what_is_composed_by_the_table_is_in_nfc(text: str) -> None:
    assert not is_composed(beyond_ascii(text.encode())) or unicodedata.is_normalized("NFC", text)


def test_each_two_characters_that_compose_are_seen() -> None:
    for character in CHARACTERS:
        parts = unicodedata.normalize("NFD", character)
        if unicodedata.normalize("NFC", parts) != parts:
            assert not is_composed(beyond_ascii(parts.encode()))


@pytest.mark.parametrize(
    "text", ["\u043f\u0440\u0438\u0432\u0435\u0442", "\u00e9", "\u0928\u092e\u0938\u094d", "\u0e01\u0e34\u0e48"]
)
def test_ordinary_text_needs_no_closer_look(text: str) -> None:
    assert is_composed(beyond_ascii(text.encode()))
