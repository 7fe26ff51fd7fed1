import re

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from stages.formats.markdown import code_block, escape, table

MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("<>[]()!*_`|&\\#~$:/\n\t -+1."))


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
    tokens = MARKDOWN.parse(table(("name", "value"), [cells]))
    inline = [token for token in tokens if token.type == "inline"]

    assert ["".join(child.content for child in token.children or []) for token in inline[2:]] == [*map(shown, cells)]


@given(text=TEXT)
def test_no_text_ends_its_code_block(text: str) -> None:
    tokens = MARKDOWN.parse(code_block(text))

    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content.rstrip() == text.rstrip()
