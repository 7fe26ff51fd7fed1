"""Headers of documents, where a completion ends, and what parses, in each language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.evaluate.generate.languages import (
    Header,
    choose_headers,
    function_end,
    function_headers,
    indentation,
    language_of,
    last_whole_lines,
    paragraph_end,
    paragraph_headers,
    parses_as_python,
)
from tests.small_project import document, function_text

SOURCE = '''\
import os
\f
class Reader:
    @property
    def name(self) -> str:
        return "x"

    async def read(
        self, size: int = -1,  # bytes
    ) -> bytes:
        # a note
        """Read."""
        @decorated
        def inner(): return 1
        return b""

def alone(): return 2

def decorated_body(x):
    @cache
    def inner(y):
        return y
    return inner
'''


def test_every_function_with_a_body_of_its_own_lines_has_a_header() -> None:
    headers = {header.line: header.signature for header in function_headers(document(SOURCE), 0)}

    assert headers == {
        5: "    def name(self) -> str:",
        8: "    async def read(\n        self, size: int = -1,  # bytes\n    ) -> bytes:\n        # a note",
        19: "def decorated_body(x):",
        21: "    def inner(y):",
    }


def test_the_prompt_is_what_precedes_the_header_in_whole_lines_and_ends_without_a_line_end() -> None:
    header = next(header for header in function_headers(document(SOURCE), 29) if header.line == 5)

    assert header.before == "class Reader:\n    @property\n"
    assert header.prompt == header.before + "    def name(self) -> str:"


def test_text_that_is_not_python_has_no_headers() -> None:
    assert function_headers(document("def broken(:\n    pass\n"), 100) == []
    assert function_headers(document("x = '\0'"), 100) == []


def test_windows_line_ends_do_not_shift_the_lines() -> None:
    text = "x = 1\r\ndef f(a):\r\n    return a\r\n"

    assert [header.signature for header in function_headers(document(text), 0)] == ["def f(a):"]


def test_the_choice_takes_one_of_each_document_before_a_second_of_any() -> None:
    documents = [document(function_text(number)) for number in range(4)]

    chosen = choose_headers(documents, "python", 6, 100, seed=0)

    assert len({header.document for header in chosen[:4]}) == 4
    assert len({header.key for header in chosen}) == 6


def test_the_choice_hangs_on_the_seed_and_not_on_the_order_of_documents() -> None:
    documents = [document(function_text(number)) for number in range(8)]

    chosen = choose_headers(documents, "python", 5, 100, seed=0)

    assert choose_headers(documents[::-1], "python", 5, 100, seed=0) == chosen
    assert choose_headers(documents, "python", 5, 100, seed=1) != chosen
    assert choose_headers(documents, "python", 3, 100, seed=0) == chosen[:3]


@given(st.lists(st.text(alphabet="aé\t ", max_size=6).map(lambda line: line + "\n")), st.integers(0, 30))
def test_the_last_lines_fit_and_one_more_would_not(lines: list[str], most: int) -> None:
    kept = last_whole_lines(lines, most)
    count = kept.count("\n")

    assert kept == "".join(lines[len(lines) - count :])
    assert len(kept.encode()) <= most
    assert count == len(lines) or len("".join(lines[-count - 1 :]).encode()) > most


def end_of(signature: str, text: str) -> int | None:
    return function_end(Header(document="d", source="s", path="p.py", line=1, before="", signature=signature))(text)


@pytest.mark.parametrize(
    ("signature", "text", "body"),
    [
        ("def f():", "\n    return 1\n\n\ndef g(", "\n    return 1\n\n\n"),
        ("def f():", "\n    return (\n        1\n)\nx", "\n    return (\n        1\n)\n"),
        ("def f():", "\n    return (\n        1\n)", None),
        ("def f():", '\n    """Of\nlines\n"""\n    x\ny', '\n    """Of\nlines\n"""\n    x\n'),
        ("def f():", "\n    x\n# and\n    y\n# after\n\n# it\nz", "\n    x\n# and\n    y\n"),
        ("def f():", "\n    x\n# and", None),
        ("def f():", '\n    x = """\nnever closed\n', None),
        ("def f():", "\nprint(1)", "\n"),
        ("def f():", " return 1\nx", " return 1\n"),
        ("def f():", "\n    x = 1\n    y = ", None),
        ("def f():", "  # type: ignore\n\n   \n    x\n", None),
        ("def f():", "x", None),
        ("def f():", "", None),
        ("    def f(self):", "\n        return 1\n    def g(self):", "\n        return 1\n"),
    ],
)
def test_a_function_ends_before_the_first_line_that_leaves_it(signature: str, text: str, body: str | None) -> None:
    assert end_of(signature, text) == (None if body is None else len(body))


def test_a_tab_is_as_wide_as_python_takes_it() -> None:
    assert [indentation(line) for line in ("x", "  x", "\tx", "  \tx", "")] == [0, 2, 8, 8, 0]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("def f():\n    return 1\n", True),
        ('    def f(self):\n        """Of\nlines\n"""\n        return 1\n', True),
        ("    def f(self):\n# to the left\n        return 1\n", True),
        ("    def f(self):\n        return 1\n  x = 1\n", False),
        ("\n  \ndef f():\n    return 1\n", True),
        ("def f():\n    return $\n", False),
        ("def f():\n    return '\0'\n", False),
        ("def f():\n    " + "(" * 10_000, False),
    ],
)
def test_a_text_is_parsed_alone_or_within_a_block(text: str, parsed: bool) -> None:
    assert parses_as_python(text) is parsed


TEXT = """Title

The first paragraph
goes over  two lines.

Zweiter Absatz: nur ein Satz.
"""


def test_each_paragraph_of_several_words_is_to_be_completed_from_its_first_half() -> None:
    headers = paragraph_headers(document(TEXT), 1000)

    assert [(header.line, header.signature) for header in headers] == [
        (3, "The first paragraph"),
        (6, "Zweiter Absatz:"),
    ]
    assert headers[1].before == "Title\n\nThe first paragraph\ngoes over  two lines.\n\n"
    assert headers[1].prompt == TEXT[: TEXT.index(" nur")]


def test_a_completion_ends_with_its_paragraph() -> None:
    end = paragraph_end(Header("d", "s", "p.txt", 1, "", "x"))

    assert end(" nur ein\nSatz.\n\nNeu") == len(" nur ein\nSatz.")
    assert end(" nur ein\n") is None
    assert end(" nur\r\n \t\r\nNeu") == len(" nur")


def test_a_paragraph_in_a_script_without_spaces_is_completed_from_half_of_its_characters() -> None:
    text = "昔々あるところにお爺さんとお婆さんがいました。\n\nword\n"

    (header,) = paragraph_headers(document(text), 1000)

    assert header.signature == "昔々あるところにお爺さ"


@pytest.mark.parametrize(
    ("path", "language"),
    [("a/b.py", "python"), ("book.txt#3", "text"), ("a.py#3", "python"), ("https://a.org/b.py?raw=1", "python")],
)
def test_in_a_mixed_corpus_the_name_of_a_file_says_its_language(path: str, language: str) -> None:
    assert language_of(path, "mixed") == language
    assert language_of(path, "text") == "text"
