from collections.abc import Iterator

import pytest

from stages.evaluate.samples.completion import complete, function_end, indentation, is_function
from stages.evaluate.samples.headers import Header


def header(signature: str) -> Header:
    return Header(document="d", source="s", path="p.py", line=1, before="", signature=signature)


@pytest.mark.parametrize(
    ("pieces", "body", "finished", "parses"),
    [
        (["\n    ret", "urn 1\n", "\n\nde", "f g("], "\n    return 1\n", True, True),
        (["\n    return (", "\n        1\n)"], "\n    return (\n        1\n", True, False),
        (["\n    x = 1\n    y = "], "\n    x = 1\n", False, True),
        (["\nprint(1)"], "\n", True, False),
        ([" return 1\nx"], " return 1\n", True, True),
        (["\n    # nothing\n\n", "x"], "\n    # nothing\n", True, False),
        ([], "\n", False, False),
        (["\n    return $\n", "x"], "\n    return $\n", True, False),
    ],
)
def test_a_function_ends_before_the_first_line_that_leaves_it(
    pieces: list[str], body: str, finished: bool, parses: bool
) -> None:
    completion = complete(header("def f():"), pieces)

    assert (completion.body, completion.finished, completion.parses) == (body, finished, parses)


def test_a_method_ends_where_the_next_one_begins() -> None:
    completion = complete(header("    def f(self):"), ["\n        return 1\n    def g(self):"])

    assert completion.body == "\n        return 1\n"
    assert completion.parses


def test_no_more_is_drawn_than_the_end_needs() -> None:
    drawn = []

    def pieces() -> Iterator[str]:
        for piece in ("\n    pass\n", "x", "never"):
            drawn.append(piece)
            yield piece

    complete(header("def f():"), pieces())

    assert drawn == ["\n    pass\n", "x"]


def test_blank_lines_and_the_signatures_own_line_end_nothing() -> None:
    assert function_end("  # type: ignore\n\n   \n    x\n", 0) is None
    assert function_end("x", 0) is None


def test_a_tab_is_as_wide_as_python_takes_it() -> None:
    assert [indentation(line) for line in ("x", "  x", "\tx", "  \tx", "")] == [0, 2, 8, 8, 0]


def test_text_that_no_parser_takes_is_no_function() -> None:
    assert not is_function("def f():\n    " + "(" * 10_000)
    assert not is_function("def f():\n    return '\0'\n")
