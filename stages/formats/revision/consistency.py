"""Does a revision agree with itself? Its files with the hashes that its dvc.lock has of them, and what it says twice.

Whoever edits a file can write its new sha256 into the index too. The outputs of each stage are also named in dvc.lock,
a folder by the hash of its listing; evaluation and execution are told in several files. Nothing is run to compare them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic_core import to_jsonable_python

from stages.formats.evaluation.report import EVALUATE_RECEIPT, EVALUATE_REPORT
from stages.formats.model_folder import MODEL
from stages.formats.reports import REPORTS
from stages.formats.revision.execution import OBSERVED_TWICE, Execution
from stages.formats.revision.lock import (
    DamagedError,
    Fault,
    Stages,
    folder_md5,
    hash_of,
    is_within,
    maker_of,
    makers_of,
    outs_of,
    read_recorded_lock,
    read_yaml,
)
from stages.formats.revision.model_index import contradictions, edited_eval_results, is_eval_result
from stages.formats.revision.provenance import (
    CARD,
    CURVES,
    EVALUATION,
    EVALUATION_RECEIPT,
    EXECUTION,
    INPUTS,
    PROVENANCE,
    RECORD,
    RECORDED_CODE,
    RECORDED_DATA,
    RECORDED_LOCK,
    RECORDED_PARAMS,
    RECORDED_PIPELINE,
    RECORDED_REQUIREMENTS,
    SOURCE_ARCHIVE,
    InputListing,
    Provenance,
    is_shipped,
    record_path,
)
from stages.runtime.atomic import file_md5
from stages.runtime.section import value_at
from stages.runtime.stage_code import FOLDER, code_in, code_path, modules_of

NOT_OF_A_STAGE = frozenset(
    {
        *(CARD, CURVES, EXECUTION, INPUTS, SOURCE_ARCHIVE, RECORDED_LOCK),
        *(RECORDED_PARAMS, RECORDED_PIPELINE, RECORDED_REQUIREMENTS),
    }
)
"""Files of a revision that publish itself writes or copies."""


def inconsistencies(folder: Path, provenance: Provenance) -> list[Fault]:
    """What in a revision contradicts itself. The hashes of the index are for `verify_files` to compare."""
    unreadable = list(damaged(folder, provenance))
    if unreadable:
        return unreadable
    lock = read_recorded_lock(folder)
    listing = InputListing.find(folder / INPUTS)
    return [
        *unknown_files(provenance, lock, listing),
        *edited_outputs(folder, provenance, lock),
        *edited_inputs(folder, provenance, lock, listing),
        *broken_chain(lock),
        *edited_settings(folder, provenance, lock),
        *edited_code(folder, provenance, lock),
        *edited_execution(folder, provenance),
        *(Fault(CARD, "contradicts", why) for why in contradictions(folder, provenance.weights_sha256)),
        *edited_eval_results(folder, provenance.files, provenance.publish or {}),
    ]


def unmade(provenance: Provenance, lock: Stages) -> list[str]:
    """The files of the model and its evaluation that no stage is recorded for: nothing can be said of them."""
    made = makers_of(lock)
    return [path for path in provenance.files if (file := project_path(path)) and maker_of(made, file) is None]


def project_path(path: str) -> str | None:
    """The file of the project that a file of a revision is a copy of, if a stage makes that; None of all others."""
    if path in NOT_OF_A_STAGE or path.startswith((f"{RECORDED_DATA}/", f"{RECORDED_CODE}/")):
        return None
    if path in (EVALUATION, EVALUATION_RECEIPT):
        return (EVALUATE_REPORT if path == EVALUATION else EVALUATE_RECEIPT).as_posix()
    if path.startswith(f"{RECORD}/{REPORTS}/"):
        return path.removeprefix(f"{RECORD}/")
    return f"{MODEL}/{path}" if is_shipped(path) else None


def damaged(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    """Files that are not of their kind."""
    for path in sorted(provenance.files):
        if not (folder / path).is_file() or path.startswith(f"{RECORDED_DATA}/"):
            continue
        try:
            if path == RECORDED_LOCK:
                read_recorded_lock(folder)
            elif path in (RECORDED_PARAMS, RECORDED_PIPELINE):
                if not isinstance(read_yaml(folder, path), dict):
                    yield Fault(path, "unreadable", "is no mapping of names to values")
            elif path == RECORDED_REQUIREMENTS:
                (folder / path).read_text(encoding="utf-8")
            elif path.endswith(".json"):
                json.loads((folder / path).read_bytes())
        except DamagedError as error:
            yield Fault(path, "unreadable", error.why)
        except (ValueError, RecursionError) as error:
            kind = "JSON" if path.endswith(".json") else "text"
            yield Fault(path, "unreadable", f"is no {kind} ({type(error).__name__})")
    if INPUTS in provenance.files and (folder / INPUTS).is_file() and InputListing.find(folder / INPUTS) is None:
        yield Fault(INPUTS, "unreadable", "is no list of inputs")


def unknown_files(provenance: Provenance, lock: Stages, listing: InputListing | None) -> Iterator[Fault]:
    """Files that are neither made by a stage, nor written by publish, nor data that the record names."""
    made = makers_of(lock)
    data = {f"{RECORDED_DATA}/{path}" for dep in (listing.dependencies if listing else ()) for path in dep.files}
    code = {record_path(path) for path, _ in code_read(lock)}
    for path in sorted(provenance.files.keys() - NOT_OF_A_STAGE - data - code):
        if is_eval_result(path):
            continue  # `edited_eval_results` knows which there are
        file = project_path(path)
        recorded = file is not None and maker_of(made, file) is not None
        if not recorded and not (file and any(is_within(file, known) for known in provenance.not_in_lock)):
            yield Fault(path, "unknown")


def edited_outputs(folder: Path, provenance: Provenance, lock: Stages) -> Iterator[Fault]:
    """Files that are not what their stage made, by the hashes in dvc.lock."""
    makers = makers_of(lock)
    copies = {path: file for path in provenance.files if (file := project_path(path)) and (folder / path).is_file()}
    for out in outs_of(lock):
        name, recorded = out["path"], str(hash_of(out))
        within = {path: file for path, file in copies.items() if is_within(file, name)}
        by = f"{RECORDED_LOCK} has another hash (stage {makers[name]})"
        if not recorded.endswith(".dir"):
            yield from (Fault(path, "edited", by) for path in within if file_md5(folder / path) != recorded)
            continue
        files = provenance.folders.get(name, {})
        if within and folder_md5(files) != recorded:
            yield Fault(PROVENANCE, "contradicts", f"its listing of {name}/ is not the folder of stage {makers[name]}")
        for path, file in within.items():
            md5 = files.get(file.removeprefix(f"{name}/"))
            if md5 != file_md5(folder / path):
                yield Fault(path, "edited", f"stage {makers[name]} made {'another' if md5 else 'no such'} file")
        if name == MODEL.as_posix():
            lacking = sorted(path for path in files if is_shipped(path) and path not in provenance.files)
            yield from (Fault(path, "missing", f"stage {makers[name]} made it") for path in lacking)


def edited_inputs(folder: Path, provenance: Provenance, lock: Stages, listing: InputListing | None) -> Iterator[Fault]:
    """Input data whose recorded hash is not the one that the stages read, or that is in the revision and is another."""
    read = {dep["path"]: hash_of(dep) for entry in lock.values() for dep in entry.get("deps", [])}
    for dep in listing.dependencies if listing else ():
        if dep.path in read and "://" not in dep.path and dep.md5 != read[dep.path]:
            yield Fault(INPUTS, "contradicts", f"{RECORDED_LOCK} has another hash of {dep.path}")
        copies = {path: f"{RECORDED_DATA}/{path}" for path in dep.files}
        inside = {path: held for path, held in copies.items() if held in provenance.files}
        for path, held in inside.items():
            if provenance.files[held] != dep.files[path]:
                yield Fault(held, "edited", f"{INPUTS} has another hash of {path}")
        files = {path.removeprefix(f"{dep.path}/"): folder / held for path, held in inside.items()}
        if inside and not dep.not_listed and all(file.is_file() for file in files.values()):
            hashes = {path: file_md5(file) for path, file in files.items()}
            if dep.md5 not in (folder_md5(hashes), hashes.get(dep.path)):
                yield Fault(f"{RECORDED_DATA}/{dep.path}", "edited", f"{RECORDED_LOCK} has another hash of {dep.path}")


def broken_chain(lock: Stages) -> Iterator[Fault]:
    """Stages that read another version of an output than the one that was made."""
    made = {out["path"]: hash_of(out) for out in outs_of(lock)}
    for stage, entry in lock.items():
        for dep in entry.get("deps", []):
            if dep["path"] in made and hash_of(dep) != made[dep["path"]]:
                yield Fault(RECORDED_LOCK, "contradicts", f"stage {stage} read another {dep['path']} than was made")


def edited_settings(folder: Path, provenance: Provenance, lock: Stages) -> Iterator[Fault]:
    """Parameters, versions and stages that the record tells twice, and otherwise."""
    # A date among the parameters is text in JSON.
    if provenance.pipeline != to_jsonable_python([{"stage": name} | entry for name, entry in lock.items()]):
        yield Fault(RECORDED_LOCK, "contradicts", f"{PROVENANCE} has other stages")
    archive = provenance.source.sha256 if provenance.source else None
    if provenance.files.get(SOURCE_ARCHIVE) != archive:
        yield Fault(SOURCE_ARCHIVE, "contradicts", f"{PROVENANCE} has {'another' if archive else 'no'} archive")
    if not (folder / RECORDED_PARAMS).is_file():
        return
    recorded = read_yaml(folder, RECORDED_PARAMS)
    for stage, entry in lock.items():
        read = entry.get("params", {}).get(Path(RECORDED_PARAMS).name, {})
        if edited := [key for key, value in read.items() if value_at(recorded, key) != value]:
            yield Fault(RECORDED_PARAMS, "contradicts", f"stage {stage} ran with another {edited[0]}")
    section = value_at(recorded, "publish")
    if isinstance(section, Mapping) and provenance.publish != section:
        yield Fault(RECORDED_PARAMS, "contradicts", f"{PROVENANCE} has other values of the section publish")


def code_read(lock: Stages) -> Iterator[tuple[str, str | None]]:
    """The files of code that the stages read, with their hashes."""
    for entry in lock.values():
        yield from ((dep["path"], hash_of(dep)) for dep in entry.get("deps", []) if Path(dep["path"]).parent == FOLDER)


def edited_code(folder: Path, provenance: Provenance, lock: Stages) -> Iterator[Fault]:
    """Code and libraries of the record that are not what the stages read, or of which the index has other versions."""
    left_out = {left.path for left in provenance.left_out}
    for path, recorded in dict.fromkeys(code_read(lock)):
        file, code = folder / record_path(path), code_in(folder / record_path(path))
        if not file.is_file():
            if path not in left_out:
                yield Fault(record_path(path), "missing", f"{RECORDED_LOCK} has its hash")
        elif file_md5(file) != recorded:
            yield Fault(record_path(path), "edited", f"{RECORDED_LOCK} has another hash of {path}")
        elif code is None:
            yield Fault(record_path(path), "unreadable", "does not name files and libraries")
        else:
            for name, version in code.libraries.items():
                if provenance.versions.get(name, version) != version:
                    yield Fault(PROVENANCE, "contradicts", f"{record_path(path)} has another version of {name}")
    for stage, entry in lock.items():
        read = {dep["path"] for dep in entry.get("deps", [])}
        for path in (code_path(module).as_posix() for module in modules_of(entry["cmd"])):
            if path not in read:
                yield Fault(RECORDED_LOCK, "contradicts", f"stage {stage} read no {path}: nothing says what it ran")


def without_code(folder: Path, lock: Stages) -> list[str]:
    """The stages whose file of code is not in the record or names none: nothing can be said of what they ran."""
    codes = {
        stage: [code_in(folder / record_path(path)) for path, _ in code_read({stage: lock[stage]})] for stage in lock
    }
    return [stage for stage, found in codes.items() if any(code is None or not code.files for code in found)]


def edited_execution(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    """Facts of the training's execution that other files tell otherwise."""
    execution = Execution.find(folder / EXECUTION) if EXECUTION in provenance.files else None
    if execution is None or not execution.sessions:
        return
    sessions = [session for session in execution.sessions if session.has_steps]
    last, observed = (sessions or execution.sessions)[-1].model_dump(), provenance.training or {}
    for fact in OBSERVED_TWICE:
        if fact in observed and observed[fact] != last[fact]:
            yield Fault(EXECUTION, "contradicts", f"{PROVENANCE} has another {fact}: {observed[fact]}")
    for session in execution.sessions:
        for name, version in session.versions.items():
            if provenance.versions.get(name, version).split("+")[0] != version.split("+")[0]:
                yield Fault(EXECUTION, "contradicts", f"{PROVENANCE} has another version of {name}")
    firsts = [session.first_step for session in execution.sessions]
    if firsts != [1, *(session.last_step + 1 for session in execution.sessions[:-1])]:
        yield Fault(EXECUTION, "contradicts", "its sessions do not follow one another from step 1")
