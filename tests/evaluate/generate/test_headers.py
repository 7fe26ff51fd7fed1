import ast
import textwrap

from hypothesis import given
from hypothesis import strategies as st

from stages.evaluate.generate.languages import choose_headers, function_headers, last_whole_lines
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


def test_a_signature_with_its_own_body_is_python() -> None:
    for header in function_headers(document(SOURCE), 0):
        ast.parse(textwrap.dedent(header.signature + "\n" + " " * 20 + "pass\n"))
