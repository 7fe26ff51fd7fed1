"""Real text for the measurements: the Python source that is installed with this project."""

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from stages.formats.documents import Document, document_id


def python_documents(limit_bytes: int) -> Iterator[Document]:
    """Documents from the installed packages, in the order of a hash of their paths, up to `limit_bytes` of text."""
    root = Path(sysconfig.get_path("purelib"))
    paths = [path for path in root.rglob("*.py") if path.is_file()]
    paths.sort(key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())
    for path in paths:
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip() and "\0" not in text:
            limit_bytes -= len(text.encode("utf-8"))
            if limit_bytes < 0:
                return
            relative = path.relative_to(root)
            yield Document(document_id(text), relative.parts[0], "", relative.as_posix(), "", text)
