from stages.evaluate.generate.languages import Header, paragraph_end, paragraph_headers
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
    assert end(" nur\r\n \t\r\nNeu") == len(" nur")


def test_a_paragraph_in_a_script_without_spaces_is_completed_from_half_of_its_characters() -> None:
    text = "昔々あるところにお爺さんがいました。\n\nword\n\nภาษาไทยไม่มีช่องว่างระหว่างคำ\n"

    headers = paragraph_headers(document(text), 1000)

    assert [header.signature for header in headers] == ["昔々あるところにお", "ภาษาไทยไม่มีช่"]
