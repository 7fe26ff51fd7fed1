"""Headers of documents, where a completion ends, and what parses, in each language."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.collect.shards import write_documents
from stages.evaluate.generate import languages
from stages.evaluate.generate.languages import (
    LANGUAGES,
    FunctionEnd,
    Header,
    choose_headers,
    drawn_documents,
    function_signatures,
    indentation,
    language_of,
    last_whole_lines,
    paragraph_signatures,
    parses_as_python,
)
from stages.formats.documents import read_shard, shard_paths
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
    assert function_signatures(SOURCE)[1] == {
        4: "    def name(self) -> str:",
        7: "    async def read(\n        self, size: int = -1,  # bytes\n    ) -> bytes:\n        # a note",
        18: "def decorated_body(x):",
        20: "    def inner(y):",
    }


def test_the_prompt_is_what_precedes_the_header_in_whole_lines_and_ends_without_a_line_end() -> None:
    headers = choose_headers([document(SOURCE)], "python", 9, 29, seed=0)
    header = next(header for header in headers if header.line == 5)

    assert header.before == "class Reader:\n    @property\n"
    assert header.prompt == header.before + "    def name(self) -> str:"


def test_text_that_is_not_python_has_no_headers() -> None:
    assert function_signatures("def broken(:\n    pass\n")[1] == {}
    assert function_signatures("x = '\0'")[1] == {}


def test_windows_line_ends_do_not_shift_the_lines() -> None:
    assert function_signatures("x = 1\r\ndef f(a):\r\n    return a\r\n")[1] == {1: "def f(a):"}


def test_the_choice_takes_one_of_each_document_before_a_second_of_any() -> None:
    documents = [document(function_text(number)) for number in range(4)]

    chosen = choose_headers(documents, "python", 6, 100, seed=0)

    assert [header.document for header in chosen] == [documents[number % 4].id for number in range(6)]
    assert len({header.key for header in chosen}) == 6


def test_no_more_documents_are_read_than_give_as_many_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(languages, "_tree", lambda text: parsed.append(text) or ast.parse(text))
    documents = iter([document("no_function = 1"), *(document(function_text(number)) for number in range(1000))])

    assert len(choose_headers(documents, "python", 3, 100, seed=0)) == 3
    assert len(parsed) == 4
    assert len(list(documents)) == 997
    assert choose_headers(documents, "python", 0, 100, seed=0) == []


def test_the_documents_depend_on_the_seed_and_an_added_one_hardly_changes_their_order(tmp_path: Path) -> None:
    texts = [function_text(number) for number in range(40)]
    orders = {}
    for name, some in (("some", texts), ("more", [*texts, function_text(99)])):
        (tmp_path / name).mkdir()
        write_documents(tmp_path / name, map(document, some), shard_bytes=2000)
        assert len(shard_paths(tmp_path / name)) > 8
        orders[name] = [[one.id for one in drawn_documents(tmp_path / name, seed)] for seed in range(20)]

    assert len({order[0] for order in orders["some"]}) > 5
    added = document(function_text(99)).id
    for order, longer in zip(orders["some"], orders["more"], strict=True):
        assert sorted(order) == sorted(document(text).id for text in texts)
        assert order == [name for name in longer if name != added]


def test_only_the_shards_of_the_documents_that_are_taken_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(tmp_path, (document(function_text(number)) for number in range(100)), shard_bytes=2000)
    read: list[Path] = []
    monkeypatch.setattr(languages, "read_shard", lambda path: read.append(path) or read_shard(path))

    assert len(choose_headers(drawn_documents(tmp_path, 0), "python", 2, 100, seed=0)) == 2
    assert len(read) <= 3 < len(shard_paths(tmp_path))


@given(st.lists(st.text(alphabet="aé\t ", max_size=6).map(lambda line: line + "\n")), st.integers(0, 30))
def test_the_last_lines_fit_and_one_more_would_not(lines: list[str], most: int) -> None:
    kept = last_whole_lines([*lines, "the header"], len(lines), most)
    count = kept.count("\n")

    assert kept == "".join(lines[len(lines) - count :])
    assert len(kept.encode()) <= most
    assert count == len(lines) or len("".join(lines[-count - 1 :]).encode()) > most


def end_of(signature: str, text: str) -> int | None:
    header = Header(document="d", source="s", path="p.py", line=1, before="", signature=signature)
    return LANGUAGES["python"].header_end(header)(text)


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


@given(st.text(alphabet="ax#\"'([)]\\\n \t", max_size=60))
def test_a_function_ends_at_the_same_place_however_its_text_grows(text: str) -> None:
    grown, ends = FunctionEnd(0), []
    for stop in range(1, len(text) + 1):
        ends.append(grown(text[:stop]))
        if ends[-1] is not None:
            break

    assert (ends or [None])[-1] == FunctionEnd(0)(text)


EXPRESSIONS = st.recursive(
    st.sampled_from(["x", "'it\\'s ('", '"""\n[ # "\n"""', "r'''\n\\\\'''", '"a\\\nb("', "1  # ]\n"]),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda some: f"(\n{', '.join(some)}\n)"),
)


@given(st.lists(EXPRESSIONS, min_size=1, max_size=4))
def test_strings_brackets_and_continued_lines_end_no_function(values: list[str]) -> None:
    body = "\n" + "".join(f"    y = (\n{value}\n) + \\\nz\n" for value in values)
    ast.parse(f"def f():{body}")

    assert end_of("def f():", f"{body}\nx = 1") == len(body) + 1


def test_each_line_of_a_growing_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    scan = FunctionEnd._read
    monkeypatch.setattr(FunctionEnd, "_read", lambda self, line: read.append(line) or scan(self, line))
    text = '\n    x = """\n' + "a line of the string\n" * 500
    end = FunctionEnd(0)

    assert [end(text[:stop]) for stop in range(len(text))] == [None] * len(text)
    assert "".join(read) == text[: text.rindex("\n", 0, -1) + 1]


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
    headers = choose_headers([document(TEXT)], "text", 9, 1000, seed=0)
    headers.sort(key=lambda header: header.line)

    assert [(header.line, header.signature) for header in headers] == [
        (3, "The first paragraph"),
        (6, "Zweiter Absatz:"),
    ]
    assert headers[1].before == "Title\n\nThe first paragraph\ngoes over  two lines.\n\n"
    assert headers[1].prompt == TEXT[: TEXT.index(" nur")]


def test_a_completion_ends_with_its_paragraph() -> None:
    end = LANGUAGES["text"].header_end(Header("d", "s", "p.txt", 1, "", "x"))

    assert end(" nur ein\nSatz.\n\nNeu") == len(" nur ein\nSatz.")
    assert end(" nur ein\n") is None
    assert end(" nur\r\n \t\r\nNeu") == len(" nur")


def test_a_paragraph_in_a_script_without_spaces_is_completed_from_half_of_its_characters() -> None:
    text = "昔々あるところにお爺さんとお婆さんがいました。\n\nword\n"

    assert paragraph_signatures(text)[1] == {0: "昔々あるところにお爺さ"}


@pytest.mark.parametrize(
    ("path", "language"),
    [("a/b.py", "python"), ("book.txt#3", "text"), ("a.py#3", "python"), ("https://a.org/b.py?raw=1", "python")],
)
def test_in_a_mixed_corpus_the_name_of_a_file_says_its_language(path: str, language: str) -> None:
    assert language_of(path, "mixed") == language
    assert language_of(path, "text") == "text"
