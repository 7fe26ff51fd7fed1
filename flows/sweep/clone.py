"""The clone in which a cell runs: `.parrotflow/sweep/CELL_ID/`, HEAD with the cell's params.yaml.

It shares the shard cache and DVC's cache with the project, so a stage that ran in one clone is restored in the others.
A clone stays, with its checkpoints, until its cell is recorded, so that a killed sweep continues. The clone of a failed
cell stays on the user's machine, to look at, but is removed on a pool's worker.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flows.dvc_repo import check_out, experiment_ref, git, give_identity, open_repo, project_cache, repair_after_kill
from flows.environment import dvc_state_within
from flows.experiments.experiment import EXPERIMENTS
from flows.project.edit import apply, open_yaml, yaml_text
from stages.runtime.atomic import atomic_write
from stages.runtime.errors import STATE_DIR, UserError, private_state_dir
from stages.runtime.preflight import LOCK_FILE
from stages.runtime.section import PARAMS_FILE

if TYPE_CHECKING:
    from flows.experiments.cells import Cell

CLONES = STATE_DIR / "sweep"

SHARD_CACHE = STATE_DIR / "cache"
"""The project's shards of data stages, which are named by their content; clones have a link to it."""


def prepare_clone(cell: "Cell", head: str, clone: Path, *, cache: str | None = None) -> Path:
    """Make the cell's clone, or bring an existing one to `head`; return its project folder.

    The cell's params.yaml is in it. `cache` is the project's cache, which is slow to look up. Raises UserError if git
    fails.
    """
    clone = clone.absolute()
    if not (clone / ".git").is_dir():
        # In a folder without a repository, git would use the project's.
        shutil.rmtree(clone, ignore_errors=True)
        _make(clone)
    # A killed git leaves its locks; no other process uses the clone.
    for lock in (clone / ".git").rglob("*.lock"):
        lock.unlink()
    give_identity(clone)
    folder = clone / git(Path(), "rev-parse", "--show-prefix")
    if git(clone, "rev-parse", "--verify", "--quiet", "HEAD", check=False) != head:
        check_out(clone, head, Path(git(Path(), "rev-parse", "--show-toplevel")))
    repair_after_kill(folder)
    _share(folder, cache or project_cache())
    text = with_overrides(PARAMS_FILE.read_text(encoding="utf-8"), cell.overrides)
    if not (folder / PARAMS_FILE).is_file() or (folder / PARAMS_FILE).read_text(encoding="utf-8") != text:
        atomic_write(folder / PARAMS_FILE, text)
    return folder


def _make(clone: Path) -> None:
    """Clone without a checkout, atomically. HEAD has no commit until the first checkout has ended.

    Does not copy objects: the clone is inside its source.
    """
    partial = _partial(clone)
    shutil.rmtree(partial, ignore_errors=True)
    clone.parent.mkdir(parents=True, exist_ok=True)
    source = git(Path(), "rev-parse", "--show-toplevel")
    git(Path(), "clone", "--quiet", "--shared", "--no-checkout", source, str(partial))
    git(partial, "symbolic-ref", "HEAD", "refs/heads/none")
    excluded = Path(git(Path(), "rev-parse", "--git-path", "info/exclude"))
    if excluded.is_file():  # else files that are ignored here would be new files of a stage there
        (partial / ".git/info").mkdir(exist_ok=True)
        shutil.copyfile(excluded, partial / ".git/info/exclude")
    partial.rename(clone)


def _share(folder: Path, cache: str) -> None:
    (folder / ".dvc").mkdir(exist_ok=True)
    # The path is quoted, because a comma would make a list. A copy of a token store in each cell would fill the disk.
    text = f'[cache]\n    dir = "{cache}"\n    type = reflink,hardlink,copy\n'
    (folder / ".dvc/config.local").write_text(text, encoding="utf-8")
    if imported := git(folder, "ls-files", "--", "*.dvc").splitlines():
        # Data of `dvc add` and `dvc import`.
        _dvc(folder, "checkout", "--quiet", "--force", "--allow-missing", *imported)
    private_state_dir(folder)
    SHARD_CACHE.mkdir(parents=True, exist_ok=True)
    if not (folder / SHARD_CACHE).is_symlink():
        (folder / SHARD_CACHE).symlink_to(SHARD_CACHE.absolute())


def remove_leftovers(recorded: Iterable[str]) -> None:
    """Remove what a kill has left: partial clones, and the clones of recorded cells."""
    clones = CLONES.absolute()
    for partial in clones.glob(".*.partial"):
        shutil.rmtree(partial, ignore_errors=True)
    for cell in recorded:
        if (clones / cell).is_dir():
            discard(clones / cell)


def discard(clone: Path) -> None:
    """Remove a clone. It is renamed first, so that after a kill no partial clone has its name."""
    shutil.rmtree(_partial(clone), ignore_errors=True)
    clone.rename(_partial(clone))
    shutil.rmtree(_partial(clone), ignore_errors=True)


def _partial(clone: Path) -> Path:
    return clone.with_name(f".{clone.name}.partial")


def with_overrides(text: str, overrides: Mapping[str, object]) -> str:
    """Return the text of params.yaml with these values and its comments."""
    values = open_yaml(text)
    apply(values, overrides)
    return yaml_text(values)


def head_commit() -> str:
    """Return HEAD, from which the clones are made. Raises UserError if tracked files differ from it.

    Files that stages write may differ, and the experiments' files. keys.py compares the hashes of untracked files.
    """
    root = Path(git(Path(), "rev-parse", "--show-toplevel"))
    head = git(root, "rev-parse", "--verify", "--quiet", "HEAD", check=False)
    if not head:
        raise UserError("this repository has no commits, and cells run from the last commit; commit first")
    with open_repo() as repo:
        outs = {Path(out.fs_path) for out in repo.index.outs}
        # Next to outs, stages also write files that are no outs, such as their times.
        written = outs | ({out.parent for out in outs} - {Path.cwd()}) | {Path(EXPERIMENTS).absolute()}
    status = git(root, "status", "--porcelain", "--untracked-files=no", "-z", "--no-renames").split("\0")
    changed = [root / entry[3:] for entry in status if entry]
    if edited := [path for path in changed if path.name != LOCK_FILE.name and not written & {path, *path.parents}]:
        names = ", ".join(os.path.relpath(path) for path in edited[:5])
        raise UserError(f"{names}: changed since the last commit; a sweep runs the last commit, so commit first")
    return head


def read_texts(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the texts of a clone's files, without missing files."""
    texts = {}
    for file in files:
        with suppress(OSError):
            texts[file] = (folder / file).read_text(encoding="utf-8", errors="replace")
    return texts


def save_experiment(folder: Path, name: str, targets: Collection[str]) -> str:
    """Save a clone's state as a DVC experiment of the project; return its commit. Raises UserError.

    The experiment lacks the metrics of stages that did not run: they are HEAD's, of another model.
    """
    with open_repo() as repo:
        current = {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}
        for out in [out for stage in {*repo.index.stages} - current for out in stage.outs]:
            if out.metric and not out.use_cache:
                (folder / os.path.relpath(out.fs_path)).unlink(missing_ok=True)
    head = git(folder, "rev-parse", "HEAD")
    # Files of stages that DVC does not cache, such as reports that no commit has yet.
    new = git(folder, "ls-files", "--others", "--exclude-standard").splitlines()
    included = [word for file in new for word in ("--include-untracked", file)]
    _dvc(folder, "exp", "save", "--quiet", "--force", "--name", name, *included, *targets)
    return fetch_experiment(git(folder, "rev-parse", "--show-toplevel"), experiment_ref(head, name))


def fetch_experiment(source: str, ref: str) -> str:
    """Fetch the reference of a DVC experiment from another repository into the project's; return its commit."""
    quietly = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
    git(Path(), "fetch", *quietly, source, f"+{ref}:{ref}")
    return git(Path(), "rev-parse", ref)


def _dvc(folder: Path, *arguments: str) -> None:
    """Run DVC in a clone. Raises UserError if it fails."""
    command = [sys.executable, "-m", "dvc", *arguments]
    environment = os.environ | dvc_state_within(folder)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"dvc {arguments[0]}: {done.stderr.strip()[-1000:]}")
