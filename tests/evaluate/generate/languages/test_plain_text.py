from stages.evaluate.generate.languages.headers import Header
from stages.evaluate.generate.languages.plain_text import paragraph_end, paragraph_headers
from tests.small_project import document

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
