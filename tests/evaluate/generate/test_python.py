import pytest

from stages.evaluate.generate.languages import Header, compiles_as_python, function_end, indentation, parses_as_python


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
    ("text", "parsed", "compiled"),
    [
        ("def f():\n    return 1\n", True, True),
        ("    def f(self):\n        return 1\n", True, True),
        ("return 1\n", True, False),
        ("def f(a, a):\n    pass\n", True, False),
        ("def f():\n    return $\n", False, False),
        ("def f():\n", False, False),
        ("def f():\n    return '\0'\n", False, False),
        ("def f():\n    " + "(" * 10_000, False, False),
    ],
)
def test_what_parses_need_not_compile_and_nothing_is_run(text: str, parsed: bool, compiled: bool) -> None:
    assert parses_as_python(text) is parsed
    assert compiles_as_python(text) is compiled
    assert compiles_as_python(f"raise SystemExit\n{text}") is (compiled and not text.startswith(" "))
