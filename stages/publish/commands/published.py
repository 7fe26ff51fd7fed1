"""List, verify and promote the revisions that are published in a folder.

    parrotflow published list
    parrotflow published verify 1f2e3d4c
    parrotflow published promote 1f2e3d4c

A revision is named by its first digits, as in git, or `main`. The folder is that of params.yaml (`publish.folder` and
`publish.name`); `--folder PATH` names another. What is on the Hub is seen and managed there, and by `hf`.
"""

import argparse
import math
from pathlib import Path

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from stages.formats.evaluation.report import Evaluation
from stages.formats.revision.provenance import EVALUATION, MAIN, PROVENANCE, REVISIONS, Provenance
from stages.formats.revision.verify import TRUSTED_KEY, verify_files, verify_signature
from stages.publish.folder import link, main_of, only_writer
from stages.publish.params import PublishParams
from stages.publish.revision import Gate
from stages.runtime.errors import UserError
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage

LEAST_DIGITS = 4
"""The shortest abbreviation of a name, as in git."""


def main() -> None:
    """Do what the command line says."""
    arguments = parse_arguments()
    folder: Path = arguments.folder or folder_of_params()
    if not (folder / REVISIONS).is_dir():
        raise UserError(f"{folder}: nothing has been published here yet; run `parrotflow run publish`")
    arguments.command(folder, arguments)


def folder_of_params() -> Path:
    """Where this project publishes. Raises UserError if that is the Hub."""
    params = read_section("publish", PublishParams)
    if params.repository is not None:
        raise UserError(
            f"publish.repository is {params.repository}: https://huggingface.co/{params.repository} shows its "
            "revisions, and `hf` and huggingface_hub.HfApi manage them; --folder names a folder of revisions"
        )
    return Path(params.folder) / params.name


def names_in(folder: Path) -> list[str]:
    """The revisions in a folder, the best first."""
    names = [path.name for path in (folder / REVISIONS).glob("[!.]*") if path.is_dir()]
    return sorted(names, key=lambda name: (bits_per_byte(folder / REVISIONS / name), name))


def bits_per_byte(revision: Path) -> float:
    """Bits per byte of the held-out split; infinite if the revision has no evaluation."""
    evaluation = Evaluation.find(revision / EVALUATION)
    return evaluation.bits_per_byte if evaluation else math.inf


def full_name(folder: Path, given: str) -> str:
    """The revision that `given` means: its name, the first digits of it, or `main`. Raises UserError."""
    names, given = names_in(folder), (main_of(folder) or given) if given == MAIN else given
    if Path(given).resolve().parent == (folder / REVISIONS).resolve():
        given = Path(given).resolve().name
    found = [name for name in names if name == given or (len(given) >= LEAST_DIGITS and name.startswith(given))]
    if len(found) == 1:
        return found[0]
    problem = "ambiguous" if found else f"no revision (give its name, or at least {LEAST_DIGITS} digits of it)"
    raise UserError(f"{given}: {problem}; {folder} has: {', '.join(names) or 'none'}")


def list_revisions(folder: Path, _: argparse.Namespace) -> None:
    """Print a line for each revision, the best first; `*` marks the revision that main points to."""
    table, main = Table(box=box.SIMPLE_HEAD), main_of(folder)
    for heading in ("", "revision", "bits per byte", "size", "commit"):
        table.add_column(heading, no_wrap=True)
    for name in names_in(folder):
        revision = folder / REVISIONS / name
        index = Provenance.find(revision / PROVENANCE)
        size = sum(path.stat().st_size for path in revision.rglob("*") if path.is_file())
        commit = f"{index.git.commit[:12]}{' dirty' if index.git.dirty else ''}" if index and index.git else ""
        table.add_row("*" if name == main else "", name, f"{bits_per_byte(revision):g}", decimal(size), commit)
    Console(width=100).print(table)


def verify(folder: Path, arguments: argparse.Namespace) -> None:
    """Read every file, compare it with its hash, and check the signature. Raises UserError if anything is wrong."""
    names = [full_name(folder, arguments.revision)] if arguments.revision else names_in(folder)
    wrong = 0
    for name in names:
        found, signature = faults(folder, name), verify_signature(folder / REVISIONS / name, arguments.key)
        wrong += bool(found) or not signature.is_acceptable(arguments.key)
        print(f"{name}  {'; '.join(found) or 'intact'}, {signature}")
    if wrong:
        raise UserError(
            f"{folder}: {wrong} of {len(names)} revisions are not as they were published, or not signed with that key; "
            f"to replace one, delete its folder in {REVISIONS}/ and publish again"
        )


def faults(folder: Path, name: str) -> list[str]:
    """The faults of a revision, and of its name here."""
    index = Provenance.find(folder / REVISIONS / name / PROVENANCE)
    misnamed = [f"{PROVENANCE}: is that of {index.revision}"] if index else []
    return [*verify_files(folder / REVISIONS / name), *(misnamed if index and index.revision != name else [])]


def promote(folder: Path, arguments: argparse.Namespace) -> None:
    """Lead main to a revision if the gate passes. Raises RefusedError if it does not."""
    with only_writer(folder):
        name, current = full_name(folder, arguments.revision), main_of(folder)
        if name != current:
            gate = gate_of(folder / REVISIONS / name, arguments.allow_worse)
            if current is not None:
                gate.check_not_worse(Evaluation.find(folder / MAIN / EVALUATION), str(folder))
            link(folder / MAIN, Path(REVISIONS) / name)
    print(f"main leads to {name}" + (f"; before: {current}" if name != current else " already"))


def gate_of(revision: Path, allow_worse: bool) -> Gate:
    """The gate of params.yaml for a published revision. Raises RefusedError if it exceeds the limit."""
    params = read_section("publish", PublishParams).gate
    gate = Gate(
        params.model_copy(update={"allow_worse": True, "bits_per_byte_at_most": None}) if allow_worse else params,
        Evaluation.read(revision / EVALUATION),
        advice="main was not moved; --allow-worse moves it nevertheless",
    )
    gate.check_limit()
    return gate


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    lines = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(prog="parrotflow published", description=lines[0], epilog=lines[-1])
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--folder", type=Path, help="a folder with revisions/, e.g. published/NAME")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help, parents=[where])
        added.set_defaults(command=run)
        return added

    command("list", list_revisions, "a line for each revision")
    of_verify = command("verify", verify, "read every file, compare it with its hash, and check the signature")
    of_verify.add_argument("revision", nargs="?", help="default: all")
    of_verify.add_argument(
        "--key",
        type=Path,
        help=f"a file of public keys; default: the one that {TRUSTED_KEY} names",
    )
    of_promote = command("promote", promote, "lead main to a revision, if the gate passes")
    of_promote.add_argument("revision")
    of_promote.add_argument("--allow-worse", action="store_true", help="skip the gate")
    return parser.parse_args()


if __name__ == "__main__":
    run_stage(main)
