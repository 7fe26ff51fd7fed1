"""A published revision on one page of HTML: its card, with the curves of the revision before it in grey.

The page is made when it is asked for and is no part of the revision: a card is the same wherever it is published, and
what was published before is not.
"""

import base64
import io
import os
import sys
import webbrowser
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from stages.formats.pages import filled_template
from stages.formats.reports import CURVES as CURVES_FOLDER
from stages.formats.revision.provenance import CARD, CURVES, record_path
from stages.publish.card.curves import draw_curves
from stages.publish.folder import read_moves
from stages.publish.registry import Folder
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import STATE_DIR, UserError

TEMPLATE = Path(__file__).parent / "card" / "page.html.jinja"

PAGES = STATE_DIR / "pages"


def write_page(registry: Folder, name: str) -> Path:
    """Write the page of a revision; where. Raises UserError where the revision has no card."""
    folder = registry.folder(name)
    if not (folder / CARD).is_file():
        raise UserError(f"{name}: holds no {CARD}, so there is nothing to show; publish it again")
    before = revision_before(registry, name)
    _, _, card = (folder / CARD).read_text(encoding="utf-8").partition("\n---\n")
    # Raw HTML in a card is shown as text: a revision may come from elsewhere.
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(card)
    picture = curves_address(folder, registry.folder(before) if before else None)
    page = filled_template(
        TEMPLATE,
        {},
        revision=name,
        location=registry.location,
        published=f"{registry.published(name):%d %B %Y, %H:%M} UTC",
        before=before if picture else None,
        card=Markup(html.replace(f'src="{CURVES}"', f'src="{picture}"') if picture else html),
    )
    path = PAGES / f"{name}.html"
    atomic_write(path, page)
    return path


def revision_before(registry: Folder, name: str) -> str | None:
    """The revision that `main` led to before it led to this one; None where there was none, or it is not kept."""
    moves = read_moves(registry.path, registry.main())
    found = next((move.before for move in reversed(moves) if move.to == name), None)
    return found if found in registry.names() else None


def curves_address(folder: Path, before: Path | None) -> str:
    """The picture of a revision's curves as a data URL; empty where it has none.

    Drawn again from the recorded curves; without them it is the card's.
    """
    picture, path = io.BytesIO(), record_path(CURVES_FOLDER)
    if not draw_curves(picture, folder / path, before / path if before else None):
        if not (folder / CURVES).is_file():
            return ""
        picture.write((folder / CURVES).read_bytes())
    return f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"


def open_page(path: Path) -> bool:
    """Open a page in the reader's browser; False where there is no screen."""
    has_screen = sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    return bool(has_screen) and webbrowser.open(path.absolute().as_uri())
