import re
import sys
from collections.abc import Callable
from itertools import compress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.clean.code_points import ALPHANUMERIC, SPACE, CharacterTable

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
