"""List, load, verify, promote, roll back and remove the revisions that are published in a folder.

    parrotflow published list
    parrotflow published show 1f2e3d4c
    parrotflow published show --page
    parrotflow published rollback

A revision is named by its first digits, as in git, or `main`. The folder is that of params.yaml (`publish.folder` and
`publish.name`); `--folder PATH` names another. What is on the Hub is seen and managed there, and by `hf`.
"""

import argparse
import base64
import io
import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.filesize import decimal

from stages.formats.evaluation.report import PublishedEvaluation
from stages.formats.pages import filled_template
from stages.formats.reports import CURVES as CURVES_FOLDER
from stages.formats.revision.consistency import unmade, without_code
from stages.formats.revision.lock import read_recorded_lock
from stages.formats.revision.provenance import CARD, CURVES, EVALUATION, MAIN, PROVENANCE, Provenance, record_path
from stages.formats.revision.verify import TRUSTED_KEY, verify_signature
from stages.publish.folder import before_main, move_main, only_writer, read_moves
from stages.publish.params import PublishParams
from stages.publish.registry import Described, Folder, described, printed_list, printed_revision
from stages.publish.revision import Gate
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import STATE_DIR, UserError, run_stage
from stages.runtime.section import read_section


def main() -> None:
    """Do what the command line says."""
    arguments = parse_arguments()
    arguments.command(Folder(arguments.folder or folder_of_params()), arguments)


def folder_of_params() -> Path:
    """Where this project publishes. Raises UserError where that is the Hub."""
    params = read_section("publish", PublishParams)
    if params.repository is not None:
        raise UserError(
            f"publish.repository is {params.repository}: https://huggingface.co/{params.repository} shows its "
            "revisions, and `hf` and huggingface_hub.HfApi manage them; --folder names a folder of revisions"
        )
    return Path(params.folder) / params.name


def list_revisions(registry: Folder, arguments: argparse.Namespace) -> None:
    """A line for each revision, the newest first."""
    rows = [described(registry, name) for name in reversed(registry.names())]
    print(as_json(rows) if arguments.json else printed_list(rows))


def show(registry: Folder, arguments: argparse.Namespace) -> None:
    """Everything about a revision; with `--page` its card in the browser."""
    if arguments.page:
        page = write_page(registry, registry.full_name(arguments.revision))
        print(f"{'opened' if open_page(page) else 'no screen here; the page is'} {page.absolute()}")
        return
    found = described(registry, registry.full_name(arguments.revision))
    print(as_json(found) if arguments.json else printed_revision(found))


def path(registry: Folder, arguments: argparse.Namespace) -> None:
    """A folder that from_pretrained loads."""
    name = registry.full_name(arguments.revision)
    if arguments.step is None:
        print(registry.folder(name).absolute())
        return
    steps = registry.steps(name)
    if arguments.step not in steps:
        known = ", ".join(map(str, sorted(steps))) or "none"
        raise UserError(f"--step {arguments.step}: not an exported step of {name}; there are: {known}")
    print(steps[arguments.step].absolute())


def verify(registry: Folder, arguments: argparse.Namespace) -> None:
    """Read every file, compare it with its hash and the record, and check the signature.

    Raises UserError where anything is wrong.
    """
    names = [registry.full_name(arguments.revision)] if arguments.revision else list(reversed(registry.names()))
    wrong = 0
    for name in names:
        folder = registry.folder(name)
        faults, signature = registry.faults(name), verify_signature(folder, arguments.key)
        wrong += bool(faults) or not signature.is_acceptable(arguments.key)
        print(f"{name}  {'; '.join(map(str, faults)) if faults else f'intact{unrecorded(folder)}'}, {signature}")
    if wrong:
        raise UserError(
            f"{registry.location}: {wrong} of {len(names)} revisions are not as they were published, or not signed "
            "with that key; to replace one, `parrotflow published remove REVISION`, then publish again"
        )


def unrecorded(folder: Path) -> str:
    """What nothing can be said of in an intact revision: files that no recorded stage makes, stages without code."""
    provenance, lock = Provenance.find(folder / PROVENANCE), read_recorded_lock(folder)
    lacking = {
        "stage": unmade(provenance, lock) if provenance else [],
        "code": without_code(folder, lock),
    }
    notes = [
        f"no {what} is recorded for {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for what, names in lacking.items()
        if names
    ]
    return f" ({'; '.join(notes)})" if notes else ""


def rollback(registry: Folder, _: argparse.Namespace) -> None:
    """Lead main to where it led before. No gate: an earlier model may be worse, and is wanted."""
    with only_writer(registry.path):
        current = registry.main_revision()
        target = before_main(read_moves(registry.path, current), set(registry.names()))
        if target is None:
            raise UserError(
                f"{registry.location}: no revision that main led to before {current} is recorded and kept; "
                "`parrotflow published promote REVISION` leads main to another"
            )
        move_main(registry.path, target, "rolled back")
    print(f"main leads to {target}; before: {current}")


def promote(registry: Folder, arguments: argparse.Namespace) -> None:
    """Move main to a revision if the gate passes."""
    with only_writer(registry.path):
        name, current = registry.full_name(arguments.revision), registry.main()
        if name != current:
            gate = gate_of(registry, name, arguments.allow_worse)
            if current is not None:
                gate.check_not_worse(PublishedEvaluation.find(registry.path / MAIN / EVALUATION), registry.location)
            move_main(registry.path, name, "promoted")
    print(f"main leads to {name}" + (f"; before: {current}" if name != current else " already"))


def gate_of(registry: Folder, name: str, allow_worse: bool) -> Gate:
    """The gate of params.yaml for a revision that is published. Raises RefusedError if it exceeds the limit."""
    report = registry.folder(name) / EVALUATION
    if not report.is_file():
        raise UserError(f"{name}: holds no evaluation, so the gate cannot judge it; publish it again")
    params = read_section("publish", PublishParams).gate
    gate = Gate(
        params.model_copy(update={"allow_worse": True, "bits_per_byte_at_most": None}) if allow_worse else params,
        PublishedEvaluation.read(report),
        advice="main was not moved; --allow-worse moves it nevertheless",
    )
    gate.check_limit()
    return gate


def remove(registry: Folder, arguments: argparse.Namespace) -> None:
    """Remove a revision. Raises UserError if main leads to it."""
    with only_writer(registry.path):
        name = registry.full_name(arguments.revision)
        if name == registry.main():
            raise UserError(
                f"{name}: main leads to it, so it is not removed; first `parrotflow published rollback`, or `promote` "
                "another"
            )
        freed = registry.freed_by_removing(name)
        registry.remove(name)
    print(f"removed {name}: {decimal(freed)} are free now")


def as_json(found: Described | list[Described]) -> str:
    """For other programs."""
    return TypeAdapter(Any).dump_json(found, indent=1).decode()


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    lines = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="parrotflow published",
        description=lines[0],
        epilog=lines[-1],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--folder", type=Path, default=None, help="a folder with revisions/, e.g. published/NAME")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help, parents=[where])
        added.set_defaults(command=run)
        return added

    of_list = command("list", list_revisions, "a line for each revision")
    of_show = command("show", show, "everything about a revision")
    of_show.add_argument("revision", nargs="?", default="main")
    of_show.add_argument("--page", action="store_true", help="its card in the browser, its curves over those before")
    for one in (of_list, of_show):
        one.add_argument("--json", action="store_true", help="for other programs")
    of_path = command("path", path, "the folder that from_pretrained loads")
    of_path.add_argument("revision", nargs="?", default="main")
    of_path.add_argument("--step", type=int, help="an exported step of the revision's run instead")
    of_verify = command("verify", verify, "read every file, compare it with its hash, and check the signature")
    of_verify.add_argument("revision", nargs="?", help="default: all")
    of_verify.add_argument(
        "--key",
        type=Path,
        help=f"a public key or an allowed-signers file of ssh-keygen; default: the file that {TRUSTED_KEY} names",
    )
    command("rollback", rollback, "lead main to where it led before")
    of_promote = command("promote", promote, "lead main to a revision, if the gate passes")
    of_promote.add_argument("revision")
    of_promote.add_argument("--allow-worse", action="store_true", help="skip the gate")
    of_remove = command("remove", remove, "remove a revision that main does not lead to")
    of_remove.add_argument("revision")
    return parser.parse_args()


TEMPLATE = Path(__file__).parents[1] / "page.html.jinja"

PAGES = STATE_DIR / "pages"


def write_page(registry: Folder, name: str) -> Path:
    """Write the page of a revision; where. Raises UserError where the revision has no card.

    It is made when it is asked for and is no part of the revision: a card is the same wherever it is published, and
    what was published before is not.
    """
    from markdown_it import MarkdownIt  # a second of imports, with those of the picture
    from markupsafe import Markup

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

    Drawn again from the recorded curves, those of the revision before in grey; without them it is the card's.
    """
    from stages.publish.render_card import draw_curves

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


if __name__ == "__main__":
    run_stage(main)
