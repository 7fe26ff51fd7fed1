"""The data of a revision: by `dvc pull`, computed, or put into the checkout by the user.

DVC pulls what the computed stages read, from this project's cache and then from the checkout's default remote. If all
of it came, the data stages keep their recorded entries in dvc.lock and `dvc repro --allow-missing` skips them; if not,
they are all computed.
"""

import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from ruamel.yaml import YAML

from flows.dvc_repo.lock_file import LOCK_FILE
from flows.reproduce.checkout import THIS_PROJECT, differing_inputs, dvc_remotes, inside, remove
from flows.reproduce.commands import run_quietly, without_secrets
from flows.reproduce.revision import RecordedRevision
from stages.formats.revision.lock import hash_of
from stages.formats.revision.provenance import record_path
from stages.runtime.atomic import file_md5
from stages.runtime.credentials import without_credentials
from stages.runtime.entry import UserError


def bring_data(
    revision: RecordedRevision,
    checkout: Path,
    wanted: Mapping[str, list[str]],
    computed: Collection[str],
    granted: Collection[str],
    *,
    from_scratch: bool,
) -> list[str]:
    """Bring what the `computed` stages read, and trim dvc.lock to the data stages that came; the names of these.

    `wanted`: input that is missing or not as recorded -> the stages that read it. Raises UserError that names an input
    that is needed and came from nowhere.
    """
    data_stages = revision.data_stages
    restored = [] if from_scratch or not pulled_outputs(revision, checkout, computed, granted) else data_stages
    needed = [path for path, readers in wanted.items() if {*readers} & {*computed, *data_stages} - {*restored}]
    if needed:
        pull(checkout, needed, granted)
    for stage, path, how in differing_inputs(revision, checkout):
        if path in needed:
            recorded = next(dep for dep in revision.stages[stage]["deps"] if dep["path"] == path)
            raise UserError(
                f"{revision.asked}: {path} is {how}: stage {stage} read it with DVC's md5 {hash_of(recorded)}, and "
                f"neither the revision nor a DVC remote has that; put it at {checkout / path} and run the same "
                "command again"
            )
    for path in wanted.keys() - {*needed}:  # the stages that read another content would run again
        remove(inside(checkout, path))
    keep_recorded(revision, checkout, restored)
    return restored


def pulled_outputs(
    revision: RecordedRevision, checkout: Path, computed: Collection[str], granted: Collection[str]
) -> bool:
    """Whether all outputs of the data stages that the computed stages read are in the checkout, after a `dvc pull`."""
    data_stages = revision.data_stages
    read = {
        dep["path"]: hash_of(dep)
        for stage in computed
        if stage not in data_stages
        for dep in revision.stages[stage].get("deps", [])
        if revision.maker_of(dep["path"]) in data_stages
    }
    # Reports are in no cache of DVC, but in the revision.
    for stage in data_stages:
        for out in revision.stages[stage].get("outs", []):
            recorded, target = revision.folder / record_path(out["path"]), inside(checkout, out["path"])
            if recorded.is_file() and file_md5(recorded) == hash_of(out):
                remove(target)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(recorded, target)
    lacking = [path for path in read if not (checkout / path).exists()]
    if lacking:
        pull(checkout, lacking, granted)
    return all((checkout / path).exists() for path in read)


def keep_recorded(revision: RecordedRevision, checkout: Path, stages: list[str]) -> None:
    """Trim the checkout's dvc.lock to these stages: all others count as never run."""
    lock = checkout / LOCK_FILE
    if not stages:
        lock.unlink()
        return
    with lock.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump({"schema": "2.0", "stages": {stage: revision.stages[stage] for stage in stages}}, file)


def pull(checkout: Path, targets: Collection[str], granted: Collection[str]) -> None:
    """`dvc pull` of files from this project's cache and the default remote, each checked by its hash."""
    default, known = dvc_remotes(checkout)
    for remote in [name for name in (THIS_PROJECT, default) if name in known]:
        command = [sys.executable, "-P", "-m", "dvc", "pull", "--allow-missing", "--remote", str(remote), *targets]
        done = run_quietly(command, checkout, without_secrets(granted))
        if done.returncode and (said := done.stderr.strip()):  # what is missing is computed, or named
            print(f"note: dvc pull from {remote}: {without_credentials(said.splitlines()[-1])}", flush=True)
