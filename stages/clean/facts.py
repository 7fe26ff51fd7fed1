"""What the ledger says of each document, independent of the filters: where it comes from, its size, its language."""

import hashlib
from pathlib import PurePosixPath

from stages.clean.filtering import DocumentText, Feature
from stages.clean.vectorized.code_points import space
from stages.formats.documents import Document, containing_file

LANGUAGE_OF_SUFFIX = {
    extension: language
    for language, extensions in {
        "C": ".c .h", "C++": ".cc .cpp .cxx .hpp", "CSS": ".css", "Go": ".go", "HTML": ".html .htm", "JSON": ".json",
        "Java": ".java", "JavaScript": ".js .mjs", "Markdown": ".md", "Python": ".py .pyi", "Rust": ".rs",
        "SQL": ".sql", "Shell": ".sh .bash", "TOML": ".toml", "TypeScript": ".ts .tsx", "YAML": ".yaml .yml",
        "reStructuredText": ".rst", "text": ".txt",
    }.items()
    for extension in extensions.split()
}  # fmt: skip

ASCII_SPACE = b"\t\n\v\f\r\x1c\x1d\x1e\x1f "


def facts_of(document: Document, text: DocumentText) -> dict[str, Feature]:
    """The facts of one document. Lengths count characters.

    `language` is guessed by the path's extension, empty where it is unknown. `content_sha256` is of the text without
    white space: equal for exact duplicates, as CodeParrot defines them.
    """
    return {
        "id": document.id,
        "source": document.source,
        "revision": document.revision,
        "path": document.path,
        "license": document.license,
        "bytes": len(text.data),
        "characters": len(text.text),
        "lines": len(text.line_lengths),
        "newlines": text.text.count("\n"),
        "language": LANGUAGE_OF_SUFFIX.get(PurePosixPath(containing_file(document.path)).suffix.lower(), ""),
        "content_sha256": hashlib.sha256(_without_space(text)).hexdigest(),
    }


def _without_space(text: DocumentText) -> bytes:
    if text.is_ascii or not space()[text.beyond_ascii].any():
        return text.data.translate(None, ASCII_SPACE)
    return "".join(text.text.split()).encode("utf-8")
