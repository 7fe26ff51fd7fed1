"""The clone in which a cell runs: `.parrotflow/sweep/CELL_ID/`, HEAD with the cell's params.yaml.

It shares DVC's cache with the project, so that a stage that ran in one clone is restored in the others, and the shard
cache. A clone stays until its cell is recorded: with it stay its checkpoints, so that a killed sweep continues.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage import PipelineStage, Stage

from flows.dvc_repo.cache import CHANGES_NO_RESULT, experiment_ref, files_of_templates, has_commit
from flows.dvc_repo.internals import open_repo, own_environment
from flows.dvc_repo.lock_file import repair_after_kill
from flows.environment import dvc_state_within
from flows.plan.changes import writes_code
from flows.project.compose import dump_yaml, load_yaml
from flows.sweep.committed import (
    changed_code_since,
    git,
    give_identity,
    is_below,
    require_committed,
    uncommitted_code,
)
from stages.runtime.atomic import atomic_write
from stages.runtime.entry import STATE_DIR, UserError, private_state_dir
from stages.runtime.section import PARAMS_FILE, read_params_file, value_at

if TYPE_CHECKING:
    from flows.experiments.cells import Cell

CLONES = STATE_DIR / "sweep"

SHARDS = STATE_DIR / "cache"
"""Of the project, by a link: the shards of data stages, which are named by their content."""

LINKS = "reflink,hardlink,copy"
"""How DVC brings results into a clone: a copy of a token store in each cell would fill the disk."""

NAMED_INPUTS = (
    "collect.sources",
    *("clean.decontamination.files", "tokenizer.folder"),
    *("train.start_from", "evaluate.sets", "evaluate.baselines"),
)
"""Parameters that may name files and folders which are no deps. `evaluate.previous` is meant to move."""


def project_cache() -> str:
    """The folder of the project's cache."""
    with open_repo() as repo:
        return str(repo.cache.local_cache_dir)


def prepare(cell: "Cell", head: str, clone: Path, own_cache: Path | None = None, *, cache: str | None = None) -> Path:
    """Make the cell's clone, or bring the one that is there to `head`; its project folder, with the cell's params.yaml.

    `cache` is the project's, which takes time to find out. With `own_cache`, a folder, nothing but data that no
    stage makes comes from the project.

    Raises UserError where git fails.
    """
    clone = clone.absolute()
    if not (clone / ".git").is_dir():
        # Without a repository of its own, git would take the project's.
        shutil.rmtree(clone, ignore_errors=True)
        _make(clone)
    # A killed git leaves its locks; no other process uses the clone.
    for lock in (clone / ".git").rglob("*.lock"):
        lock.unlink()
    give_identity(clone)
    folder = clone / git(Path(), "rev-parse", "--show-prefix")
    if git(clone, "rev-parse", "--verify", "--quiet", "HEAD", check=False) != head:
        git(clone, "checkout", "--quiet", "--force", "--detach", head)
    repair_after_kill(folder)
    if own_cache:
        _forget_results(folder)
    _share(folder, cache or project_cache(), own_cache)
    text = with_overrides(PARAMS_FILE.read_text(encoding="utf-8"), cell.overrides)
    if not (folder / PARAMS_FILE).is_file() or (folder / PARAMS_FILE).read_text(encoding="utf-8") != text:
        atomic_write(folder / PARAMS_FILE, text)
    return folder


def _make(clone: Path) -> None:
    """Clone without a checkout, whole or not at all. HEAD names no commit until the first checkout has ended.

    Objects are not copied: the clone lies within its source and does not outlive it.
    """
    partial = _partial(clone)
    shutil.rmtree(partial, ignore_errors=True)
    clone.parent.mkdir(parents=True, exist_ok=True)
    source = git(Path(), "rev-parse", "--show-toplevel")
    git(Path(), "clone", "--quiet", "--shared", "--no-checkout", source, str(partial))
    git(partial, "symbolic-ref", "HEAD", "refs/heads/none")
    excluded = Path(git(Path(), "rev-parse", "--git-path", "info/exclude"))
    if excluded.is_file():  # what is ignored here is no new file of a stage there
        (partial / ".git/info").mkdir(exist_ok=True)
        shutil.copyfile(excluded, partial / ".git/info/exclude")
    partial.rename(clone)


def _forget_results(folder: Path) -> None:
    """Remove HEAD's dvc.lock: with it, outputs that git tracks count as results, though nothing here has made them."""
    tracked = git(folder, "ls-files", "--", ":(glob)**/dvc.lock").splitlines()
    written = git(folder, "ls-files", "--modified", "--", ":(glob)**/dvc.lock").splitlines()
    for lock in {*tracked} - {*written}:
        (folder / lock).unlink()


def _share(folder: Path, cache: str, own_cache: Path | None) -> None:
    (folder / ".dvc").mkdir(exist_ok=True)
    _use_cache(folder, cache)
    if imported := git(folder, "ls-files", "--", "*.dvc").splitlines():
        # Data that no stage makes (`dvc add`, `dvc import`) comes from the project's cache in any case.
        _dvc(folder, "checkout", "--quiet", "--force", "--allow-missing", *imported)
    (private_state_dir(folder) / ".gitignore").write_text("*\n", encoding="utf-8")
    if own_cache:
        _use_cache(folder, str(own_cache))
        return
    SHARDS.mkdir(parents=True, exist_ok=True)
    if not (folder / SHARDS).is_symlink():
        (folder / SHARDS).symlink_to(SHARDS.absolute())


def _use_cache(folder: Path, cache: str) -> None:
    text = f"[cache]\n    dir = {cache}\n    type = {LINKS}\n"
    (folder / ".dvc/config.local").write_text(text, encoding="utf-8")


def remove_leftovers(clones: Path, recorded: Iterable[str]) -> None:
    """Remove what a kill has left: clones half made or half removed, and those of cells whose result is recorded."""
    for partial in clones.glob(".*.partial"):
        shutil.rmtree(partial, ignore_errors=True)
    for cell in recorded:
        if (clones / cell).is_dir():
            discard(clones / cell)


def discard(clone: Path) -> None:
    """Remove a clone, so that a kill leaves all of it or nothing under its name."""
    shutil.rmtree(_partial(clone), ignore_errors=True)
    clone.rename(_partial(clone))
    shutil.rmtree(_partial(clone), ignore_errors=True)


def _partial(clone: Path) -> Path:
    return clone.with_name(f".{clone.name}.partial")


def with_overrides(text: str, overrides: Mapping[str, object]) -> str:
    """params.yaml's text with other values, its comments kept."""
    document = load_yaml(text)
    for key, value in overrides.items():
        section, _, last = key.rpartition(".")
        value_at(document, section)[last] = value
    return dump_yaml(document)


def require_listed(cells: Iterable["Cell"], targets: Iterable[str]) -> None:
    """Raise UserError where cells' params name files of the project that the stages which read them do not list.

    DVC would restore from its run-cache what a stage made of other files of these names.
    """
    project, values = Path.cwd(), read_params_file()
    params = [cell.params(values) for cell in cells]
    with open_repo() as repo:
        outs = {Path(out.fs_path) for stage in repo.index.stages if stage.cmd for out in stage.outs}
        for stage in {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}:
            if writes_code(stage):
                continue  # of what params.yaml names it reads the versions of packages alone
            own = [dep for dep in stage.deps if isinstance(dep, ParamsDependency)]
            listed = [key for dep in own if Path(dep.fs_path) == project / PARAMS_FILE for key in dep.params or [""]]
            read = [key for key in NAMED_INPUTS if any(not one or f"{key}.".startswith(f"{one}.") for one in listed)]
            known = outs | {Path(dep.fs_path) for dep in stage.deps}
            for key in read:
                for path in {os.path.normpath(text) for its in params for text in _texts(value_at(its, key))}:
                    if _is_within(project, path) and not is_below(project / path, known):
                        raise UserError(
                            f"{key} names {path}, which {stage.addressing} does not list in dvc.yaml, so no cell would "
                            "notice a change of it: add it to the deps of that stage, and commit both"
                        )


def _texts(value: object) -> list[str]:
    values = list(value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value])
    sources = [one for one in values if isinstance(one, Mapping)]
    # Of a glob what is before its first wildcard: the folder that is to be listed.
    globs = [re.split(r"[^/]*[*?\[]", glob)[0] for source in sources for glob in source.get("globs") or ()]
    return [text for text in (*values, *globs, *(one.get("repository") for one in sources)) if isinstance(text, str)]


def _is_within(project: Path, path: str) -> bool:
    """Not so are models of the Hub and files elsewhere."""
    return not Path(path).is_absolute() and not path.startswith("..") and (project / path).exists()


def head_commit(targets: Sequence[str], cells: Iterable["Cell"] = (), *, with_params: bool = False) -> str:
    """HEAD, from which the clones are made. Raises UserError where it does not have all that the cells read.

    params.yaml may differ unless `with_params`: each cell's own is written from it.
    """
    try:
        require_listed(cells, targets)
        with open_repo() as repo:
            with_code, stages, outs, read = read_by(repo, targets)
            read |= {Path(stage.path) for stage in stages} | ({PARAMS_FILE.absolute()} if with_params else set())
    except DvcException as error:
        raise UserError(f"dvc: {error}") from None
    root = Path(git(Path(), "rev-parse", "--show-toplevel"))
    if not git(root, "rev-parse", "--verify", "--quiet", "HEAD", check=False):
        raise UserError("this repository has no commit yet; cells are made from the last commit: commit first")
    status = git(root, "status", "--porcelain", "--untracked-files=all", "-z", "--no-renames").split("\0")
    changed = [root / entry[3:] for entry in status if entry]
    outside = [os.path.relpath(path) for path in changed if is_below(path, read) and not is_below(path, outs)]
    if outside := [*outside, *uncommitted_code(with_code)]:
        raise UserError(
            f"{', '.join(outside[:5])}: not as in the last commit, from which the cells are made; commit first"
        )
    require_committed(targets)
    return git(root, "rev-parse", "HEAD")


def changed_since(commit: str, targets: Iterable[str], sources: str = "") -> list[str]:
    """What the targets and the stages before them read or execute, and what differs between a commit and HEAD.

    Files, libraries, and the names of stages that say something else in dvc.yaml; params.yaml is not looked at.
    Everything where git does not have the commit any more. `sources` is what `sources_of` gives: the versions of
    packages among them count.
    """
    root = Path(git(Path(), "rev-parse", "--show-toplevel"))
    with open_repo() as repo:
        with_code, stages, outs, read = read_by(repo, targets)
        read = read - outs | {Path(stage.path) for stage in stages if not stage.cmd}
        files = {os.path.relpath(stage.path) for stage in stages if isinstance(stage, PipelineStage)}
        names = {stage.name.partition("@")[0] for stage in stages if isinstance(stage, PipelineStage)}
    if not has_commit(commit):
        return sorted(os.path.relpath(path) for path in read)
    inside = sorted(str(path) for path in read if path.is_relative_to(root))
    changed = git(Path(), "diff", "--name-only", commit, "HEAD", "--", *inside).splitlines() if inside else []
    for file in sorted(files):
        before, now = _stages_at(commit, file), _stages_at("HEAD", file)
        changed += sorted(name for name in (*names, "vars") if before.get(name) != now.get(name))
    return [*changed, *changed_code_since(commit, with_code, sources)]


def read_by(repo: Repo, targets: Iterable[str]) -> tuple[set[Stage], set[Stage], set[Path], set[Path]]:
    """The targets with the stages before them, those of them that do not record code, the outputs of all stages, and
    what those stages read, without params.yaml."""
    with_code = {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}
    stages = {stage for stage in with_code if not writes_code(stage)}
    outs = {Path(out.fs_path) for stage in repo.index.stages for out in stage.outs}
    read = {Path(dep.fs_path) for stage in stages for dep in stage.deps} | files_of_templates(stages)
    return with_code, stages, outs, read - {PARAMS_FILE.absolute()}


def _stages_at(commit: str, file: str) -> dict[str, object]:
    """The stages of a dvc.yaml at a commit, without what changes no result, and its `vars`."""
    content = yaml.safe_load(git(Path(), "show", f"{commit}:./{file}", check=False)) or {}
    stages = {
        name: {key: value for key, value in stage.items() if key not in CHANGES_NO_RESULT}
        for name, stage in (content.get("stages") or {}).items()
    }
    return stages | {"vars": content.get("vars")}


def require_same_bytes(folder: Path, targets: Iterable[str]) -> None:
    """Raise UserError if git gave a clone other bytes of the files that the targets read than the project has.

    Git converts line ends as it checks out, and its status calls both versions unchanged. Sizes tell them apart.
    """
    with open_repo() as repo:
        _, _, outs, read = read_by(repo, targets)
    project = Path.cwd()
    inside = sorted(os.path.relpath(path) for path in read - outs if path.is_relative_to(project))
    for name in git(folder, "ls-files", "-z", "--", *inside).split("\0") if inside else ():
        here, there = project / name, folder / name
        if name and here.is_file() and there.is_file() and here.stat().st_size != there.stat().st_size:
            converts = git(folder, "config", "core.autocrlf", check=False) not in ("", "false")
            setting = "core.autocrlf of git" if converts else "an attribute such as `* text=auto` in .gitattributes"
            raise UserError(
                f"{name}: {here.stat().st_size} bytes here, {there.stat().st_size} in a clone of the same commit, "
                f"because {setting} converts line ends; write `{name.partition('/')[0]}/** -text` to .gitattributes "
                "(`corpus/** -text` for a corpus), run `git add --renormalize .` and commit"
            )


def texts_of(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """The texts of a clone's files; one that is not there is left out."""
    texts = {}
    for file in files:
        with suppress(OSError):
            texts[file] = (folder / file).read_text(encoding="utf-8", errors="replace")
    return texts


def save_experiment(folder: Path, name: str, targets: Collection[str]) -> str:
    """Save a clone's state as a DVC experiment of the project; its commit. Raises UserError.

    The metrics of stages that were not brought up to date are HEAD's, of another model; the experiment has none.
    """
    with open_repo() as repo:
        current = {stage for target in targets for stage in repo.stage.collect(target, with_deps=True)}
        for out in [out for stage in {*repo.index.stages} - current for out in stage.outs]:
            if out.metric and not out.use_cache:
                (folder / os.path.relpath(out.fs_path)).unlink(missing_ok=True)
    head = git(folder, "rev-parse", "HEAD")
    # What stages have written and DVC does not cache, such as reports that no commit has yet.
    new = git(folder, "ls-files", "--others", "--exclude-standard").splitlines()
    included = [word for file in new for word in ("--include-untracked", file)]
    _dvc(folder, "exp", "save", "--quiet", "--force", "--name", name, *included, *targets)
    return fetch_experiment(git(folder, "rev-parse", "--show-toplevel"), experiment_ref(head, name))


def fetch_experiment(source: str, ref: str) -> str:
    """Bring the reference of a DVC experiment from another repository into the project's; its commit."""
    quietly = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
    git(Path(), "fetch", *quietly, source, f"+{ref}:{ref}")
    return git(Path(), "rev-parse", ref)


def _dvc(folder: Path, *arguments: str) -> None:
    """Run DVC in a clone. Raises UserError where it fails."""
    command = [sys.executable, "-m", "dvc", *arguments]
    environment = own_environment() | dvc_state_within(folder)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"dvc {arguments[0]}: {done.stderr.strip()[-1000:]}")
