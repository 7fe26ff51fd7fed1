from markdown_it import MarkdownIt

from stages.evaluate.generate.page import samples_page
from stages.evaluate.generate.params import HeaderParams
from stages.formats.evaluation.generation import Sample

PARAMS = HeaderParams(count=1, temperature=0.8, top_p=0.95, max_new_tokens=10, header_bytes=0)
HOSTILE = "`a`\n# b <script>alert(1)</script> [c](https://evil.example) | d"


def test_names_and_text_of_the_corpus_stay_text() -> None:
    sample = Sample(HOSTILE, HOSTILE, 1, "````\n# prompt", "", "\n```\n# body\n", seed=0, finished=True, parses=False)

    tokens = MarkdownIt("commonmark").parse(samples_page([sample], PARAMS))

    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1", "h2"]
    assert [token.content for token in tokens if token.type == "fence"] == ["````\n# prompt\n", "```\n# body\n"]
    kinds = {child.type for token in tokens for child in token.children or []}
    assert not kinds & {"html_inline", "link_open", "code_inline"}


def test_a_completion_without_a_body_is_shown_as_such() -> None:
    sample = Sample("s", "p.py", 1, "def f():", "def f():", "\n", seed=0, finished=True, parses=False)

    assert "(nothing)" in samples_page([sample], PARAMS)


def test_a_complete_text_of_a_language_without_a_grammar_needs_no_remark() -> None:
    sample = Sample("s", "p.txt", 1, "It was", "It was", " late.\n", seed=0, finished=True, parses=None)

    assert "## 1. s p.txt, line 1\n" in samples_page([sample], PARAMS)
