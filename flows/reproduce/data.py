"""The data of a revision: inputs that no stage makes, and what the data stages made, where a DVC remote has it."""

import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from dvc.exceptions import OutputNotFoundError
from dvc.repo import Repo
from ruamel.yaml import YAML

from flows.dvc_repo.lock_file import LOCK_FILE
from flows.reproduce.checkout import RECORDED, THIS_PROJECT, differing_inputs, dvc_remotes, dvc_status
from flows.reproduce.commands import run_quietly, without_secrets
from flows.reproduce.revision import RecordedRevision
from stages.formats.revision.lock import hash_of
from stages.formats.revision.provenance import RECORDED_DATA, Dependency, record_path
from stages.runtime.atomic import file_md5
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import UserError
from stages.runtime.inputs import DVC_FILE


def supply_inputs(
    revision: RecordedRevision, checkout: Path, wanted: list[str], given: Path | None, granted: Collection[str]
) -> list[str]:
    """Bring input data into the checkout, each file checked by its hash; a line for each.

    It is looked for in the revision itself, in the current folder, in `given`, and in the DVC remote. Raises UserError
    that names what is needed and its hash where its bytes are nowhere.
    """
    lines = []
    for path in wanted:
        for place, copied in suppliers(revision, checkout, path, given, granted):
            if copied and not any(found == path for _, found, _ in differing_inputs(revision, checkout)):
                lines.append(f"{path}: from {place}")
                break
        else:
            raise UserError(missing_input(revision, path, given))
    return lines


def suppliers(
    revision: RecordedRevision, checkout: Path, path: str, given: Path | None, granted: Collection[str]
) -> Iterator[tuple[str, bool]]:
    """Each place that may have an input, and whether something was copied from there into the checkout."""
    yield "the revision", copied(revision.folder / RECORDED_DATA / path, checkout, path)
    if Path.cwd() != checkout:
        yield "this project", copied(Path.cwd() / path, checkout, path)
    if given is not None:
        inside = given / path
        yield str(given), copied(inside if inside.exists() else given, checkout, path)
    if is_tracked(checkout, path):
        yield "the DVC remote", pull(checkout, [path], granted) and (checkout / path).exists()


def copied(source: Path, checkout: Path, path: str) -> bool:
    """Copy a file or folder in place of one of the checkout; False where there is nothing to copy.

    Raises UserError where the place is outside of the checkout: what is there is the user's own.
    """
    target, place, origin = checkout / path, (checkout / path).resolve(), source.resolve()
    if place == checkout.resolve() or not place.is_relative_to(checkout.resolve()):
        raise UserError(
            f"{path}: the record names an input outside of the project, which is not as recorded; nothing was written "
            "there: put what was recorded in its place, or work in a container that has it there"
        )
    if not source.exists() or place.is_relative_to(origin) or origin.is_relative_to(place):
        return False
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
    return True


def missing_input(revision: RecordedRevision, path: str, given: Path | None) -> str:
    """What is needed, its hash, and where the record says that it is."""
    dependencies = revision.inputs.dependencies if revision.inputs else []
    dep: Dependency | None = next((dep for dep in dependencies if dep.path == path), None)
    hashes = f" (DVC's md5 {dep.md5}, {dep.bytes} bytes)" if dep else ""
    places = [f"{place.kind} {place.address or ''}".strip() for place in dep.places] if dep else []
    known = f"; the record names {', '.join(places)}" if places else ""
    if given is not None:
        return f"{path}{hashes}: {given} does not hold it with the recorded content{known}"
    return (
        f"{path}{hashes}: this input is neither in the revision nor in a DVC remote, nor as recorded in this project"
        f"{known}; name a folder that holds {path}, or the file itself, with --data"
    )


def pulled(
    revision: RecordedRevision, checkout: Path, wanted: Mapping[str, list[str]], granted: Collection[str]
) -> list[str]:
    """The data stages whose outputs are all there, with the recorded hashes, after a `dvc pull` from each remote.

    The `wanted` inputs that only these read are not needed: the recorded dvc.lock says what was made from them.
    """
    stages = revision.data_stages
    if not stages or not pull(checkout, stages, granted):
        return []
    # Reports are in no cache of DVC: the revision has most, this project may have the others.
    for stage in stages:
        for out in revision.stages[stage].get("outs", []):
            for report in (revision.folder / record_path(out["path"]), Path.cwd() / out["path"]):
                if not (checkout / out["path"]).exists() and report.is_file() and file_md5(report) == hash_of(out):
                    copied(report, checkout, out["path"])
    status = dvc_status(checkout, stages)
    # A stage of `foreach` or `matrix`, or of another folder, cannot be frozen by its name in dvc.yaml.
    return [stage for stage in stages if lacks_only(status.get(stage, []), () if {"@", ":"} & {*stage} else wanted)]


def lacks_only(changes: list[Any], paths: Collection[str]) -> bool:
    """Whether a stage is up to date but for these inputs."""
    return all(
        isinstance(change, dict) and change.keys() == {"changed deps"} and change["changed deps"].keys() <= set(paths)
        for change in changes
    )


def keep_restored(revision: RecordedRevision, checkout: Path, restored: list[str], lacking: Collection[str]) -> None:
    """Let the checkout's dvc.lock have only the stages that were restored: all others count as never run.

    Those in `lacking`, whose inputs are not there, are frozen: DVC would else compute them because an input is missing.
    """
    lock, pipeline = checkout / LOCK_FILE, checkout / DVC_FILE
    if not restored:
        lock.unlink()
        return
    with lock.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump({"schema": "2.0", "stages": {stage: revision.stages[stage] for stage in restored}}, file)
    if lacking:
        yaml = YAML()
        content = yaml.load(pipeline)
        for stage in lacking:
            content["stages"][stage]["frozen"] = True
        with pipeline.open("w", encoding="utf-8") as file:
            yaml.dump(content, file)


def is_tracked(checkout: Path, path: str) -> bool:
    """Whether DVC tracks a file or folder, so that a remote may have it."""
    with Repo(str(checkout)) as repo:
        try:
            return bool(repo.find_outs_by_path(str(checkout / path)))
        except OutputNotFoundError:
            return False


def pull(checkout: Path, targets: list[str], granted: Collection[str] = ()) -> bool:
    """`dvc pull` of files or stages from each remote that is known; False where none is."""
    default, known = dvc_remotes(checkout)
    remotes = [name for name in (THIS_PROJECT, default, RECORDED) if name is not None and name in known]
    for remote in remotes:
        command = ["pull", "--allow-missing", "--remote", remote, *targets]
        done = run_quietly([sys.executable, "-P", "-m", "dvc", *command], checkout, without_secrets(granted))
        if done.returncode and (said := done.stderr.strip()):  # what is missing is looked for elsewhere, or computed
            print(f"note: dvc pull from {remote}: {without_credentials(said.splitlines()[-1])}", flush=True)
    return bool(remotes)
