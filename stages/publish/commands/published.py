"""`parrotflow published list`, `verify` and `promote`: the revisions that are published in a folder.

A revision is given by its first digits, as in git, or as `main`. The folder is `publish.folder`/`publish.name` of
params.yaml, unless `--folder` is given.
"""

import math
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from stages.formats.evaluation.report import Evaluation, Yardstick
from stages.formats.revision.provenance import EVALUATION, MAIN, MIN_DIGITS, PROVENANCE, REVISIONS, revision_path
from stages.formats.revision.statement import Provenance
from stages.formats.revision.verify import verify_files, verify_signature
from stages.publish.folder import link, main_of, only_writer
from stages.publish.params import PublishParams
from stages.publish.revision import Gate
from stages.runtime.errors import UserError
from stages.runtime.section import read_section


def folder_of_revisions(given: Path | None) -> Path:
    """`given`, or the folder to which this project publishes.

    Raises UserError if the project publishes to the Hub, or the folder has no revisions.
    """
    if given is None:
        params = read_section("publish", PublishParams)
        if params.repository is not None:
            raise UserError(
                f"publish.repository is {params.repository}, so its revisions are at "
                f"https://huggingface.co/{params.repository}: manage them with `hf` or huggingface_hub.HfApi, or name "
                "a folder of revisions with --folder"
            )
        given = Path(params.folder) / params.name
    if not (given / REVISIONS).is_dir():
        others = ", ".join(sorted(str(path.parent) for path in given.parent.glob(f"*/{REVISIONS}")))
        see = f", or see {others} (--folder)" if others else ""
        raise UserError(f"{given}: nothing has been published here yet; run `parrotflow run publish`{see}")
    return given


def names_in(folder: Path) -> list[str]:
    """The revisions in a folder, best first."""
    names = [path.name for path in (folder / REVISIONS).glob("[!.]*") if path.is_dir()]
    return sorted(names, key=lambda name: (published_bits_per_byte(folder / REVISIONS / name), name))


def published_bits_per_byte(revision: Path) -> float:
    """Bits per byte of the held-out split; infinite if the revision has no evaluation."""
    evaluation = Evaluation.find(revision / EVALUATION)
    return evaluation.bits_per_byte if evaluation else math.inf


def full_name(folder: Path, given: str) -> str:
    """The name of a revision given by its name, its first digits, its path, or `main`.

    Raises UserError if there is no such revision or several.
    """
    names, given = names_in(folder), (main_of(folder) or given) if given == MAIN else given
    if Path(given).resolve().parent == (folder / REVISIONS).resolve():
        given = Path(given).resolve().name
    matches = [name for name in names if name == given or (len(given) >= MIN_DIGITS and name.startswith(given))]
    if len(matches) == 1:
        return matches[0]
    problem = "ambiguous" if matches else f"no such revision (give its name, or at least {MIN_DIGITS} digits of it)"
    raise UserError(f"{given}: {problem}; {folder} has: {', '.join(names) or 'none'}")


def list_revisions(
    *,
    folder: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", help="End with one line of JSON, for other programs.")] = False,
) -> dict[str, Any]:
    """Print a line for each revision, best first; `*` marks the revision that main points to.

    Parameters
    ----------
    folder
        A folder with revisions/, e.g. published/NAME.
    """
    folder, listed = folder_of_revisions(folder), []
    table, main = Table(box=box.SIMPLE_HEAD), main_of(folder)
    for heading in ("", "revision", "bits per byte", "of PPMd", "size", "commit"):
        table.add_column(heading, no_wrap=True)
    for name in names_in(folder):
        revision = folder / REVISIONS / name
        index = Provenance.find(revision / PROVENANCE)
        yardstick = Yardstick.find(revision / revision_path(Yardstick.path))
        ppmd = f"{yardstick.bits_per_byte['ppmd']:g}" if yardstick else ""
        size = sum(path.stat().st_size for path in revision.rglob("*") if path.is_file())
        commit = f"{index.git.commit[:12]}{' dirty' if index.git.dirty else ''}" if index and index.git else ""
        value = published_bits_per_byte(revision)
        listed.append({"revision": name, "is_main": name == main, "bits_per_byte": value, "commit": commit})
        table.add_row("*" if name == main else "", name, f"{value:g}", ppmd, decimal(size), commit)
    Console(width=100).print(table)
    return {"revisions": listed, "record": folder.as_posix()}


def verify(revision: str | None = None, /, *, key: Path | None = None, folder: Path | None = None) -> None:
    """Compare every file with its hash, and check the signature. Exits with 2 if anything is wrong.

    Parameters
    ----------
    revision
        Its name, or the first digits of it; the default is all.
    key
        A file of public keys; the default is PARROTFLOW_TRUSTED_KEY.
    folder
        A folder with revisions/, e.g. published/NAME.
    """
    folder = folder_of_revisions(folder)
    names = [full_name(folder, revision)] if revision is not None else names_in(folder)
    wrong = 0
    for name in names:
        problems, signature = faults(folder, name), verify_signature(folder / REVISIONS / name, key)
        wrong += bool(problems) or not signature.is_acceptable(key)
        print(f"{name}  {'; '.join(problems) or 'intact'}, {signature}")
    if wrong:
        raise UserError(
            f"{folder}: {wrong} of {len(names)} revisions are not as they were published, or not signed with that key; "
            f"to replace one, delete its folder in {REVISIONS}/ and run `dvc repro -fs publish`"
        )


def faults(folder: Path, name: str) -> list[str]:
    """The faults in a revision's files and name."""
    index = Provenance.find(folder / REVISIONS / name / PROVENANCE)
    misnamed = [f"{PROVENANCE}: belongs to {index.revision}"] if index else []
    return [*verify_files(folder / REVISIONS / name), *(misnamed if index and index.revision != name else [])]


def promote(revision: str, /, *, allow_worse: bool = False, folder: Path | None = None) -> None:
    """Make main point to a revision if the gate passes. Exits with 77 if it does not.

    Parameters
    ----------
    revision
        Its name, or the first digits of it.
    allow_worse
        Skip the gate.
    folder
        A folder with revisions/, e.g. published/NAME.
    """
    folder = folder_of_revisions(folder)
    with only_writer(folder):
        name, current = full_name(folder, revision), main_of(folder)
        if name != current:
            gate = gate_of(folder / REVISIONS / name, allow_worse)
            if current is not None:
                gate.check_not_worse(Evaluation.find(folder / MAIN / EVALUATION), str(folder), "add --allow-worse")
            link(folder / MAIN, Path(REVISIONS) / name)
    print(f"main points to {name}" + (f"; before: {current}" if name != current else " already"))


def gate_of(revision: Path, allow_worse: bool) -> Gate:
    """The gate of params.yaml for a published revision. Raises RefusedError if it exceeds the limit."""
    params = read_section("publish", PublishParams).gate
    if allow_worse:
        params = params.model_copy(update={"allow_worse": True, "bits_per_byte_at_most": None})
    gate = Gate(params, Evaluation.read(revision / EVALUATION))
    gate.check_limit()
    return gate
