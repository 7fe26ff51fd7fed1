import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markdown_it import MarkdownIt

from stages.formats.pages import code_block, escape, filled_template, markdown_table

MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("<>[]()!*_`|&\\#~$:/\n\t -+1."))


def test_a_value_is_shown_as_it_is_and_one_that_is_missing_ends_the_page(tmp_path: Path) -> None:
    template = tmp_path / "page.html.jinja"
    template.write_text("<p>{{ name }}, {{ share | percent }}</p>\n")
    filters = {"percent": "{:.0%}".format}

    assert filled_template(template, filters, name="<b>", share=0.5) == "<p>&lt;b&gt;, 50%</p>\n"
    with pytest.raises(UndefinedError, match="'name' is undefined"):
        filled_template(template, filters, share=0.5)


def test_in_markdown_only_what_is_called_markdown_is_markup(tmp_path: Path) -> None:
    template = tmp_path / "page.md.jinja"
    template.write_text(
        '# {{ name }}\n{{ text|markdown }}\n{{ table(["", "<"], [(name, "1")]) }}{{ code_block(name) }}'
    )

    assert filled_template(template, {}, name="*a\n&", text="*b*") == (
        "# \\*a \\&\n*b*\n|  | \\< |\n| --- | --: |\n| \\*a \\& | 1 |\n```python\n*a\n&\n```\n"
    )


def shown(markdown: str) -> str:
    return re.sub(r"\s+", " ", markdown).strip()


@given(text=TEXT)
def test_escaped_text_is_shown_as_it_is(text: str) -> None:
    (inline,) = MARKDOWN.parseInline(escape(text))

    assert {token.type for token in inline.children or []} <= {"text", "text_special"}
    assert "".join(token.content for token in inline.children or []) == shown(text)


def test_names_that_people_know_stay_readable() -> None:
    assert escape("huggingface_hub src/a-b.py (1.0+cpu)") == "huggingface_hub src/a-b.py (1.0+cpu)"


@given(cells=st.lists(TEXT, min_size=2, max_size=2))
def test_a_cell_can_neither_end_its_cell_nor_become_markup(cells: list[str]) -> None:
    tokens = MARKDOWN.parse(markdown_table(("name", "value"), [cells]))
    inline = [token for token in tokens if token.type == "inline"]

    assert ["".join(child.content for child in token.children or []) for token in inline[2:]] == [*map(shown, cells)]


@given(text=TEXT)
def test_no_text_ends_its_code_block(text: str) -> None:
    tokens = MARKDOWN.parse(code_block(text))

    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content.rstrip() == text.rstrip()
