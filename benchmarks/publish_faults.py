"""Faults injected into publishing to the Hub: does the same command, repeated, always end with the same state there?

    python -m benchmarks.publish_faults [--quick] [--trials 200] [--at-once 1] [--trial N]

The real client publishes a small project with two exported steps, a data set and a tokenizer to a Hub on the loopback
interface, by Xet and by LFS. The first step is pushed during training, as `push_steps` does. One request of the whole
protocol goes wrong: before its effect (an error status, an expired token, a broken connection, a login page, the
publisher killed), or after it (the answer is lost, a gateway answers 504, the publisher killed). Then the command is
repeated until it succeeds. A trial is right if afterwards

    the run's branch has exactly one commit for each step and one for the model, in order, each with its tag;
    every file there and on main has the sha256 of the file that was published;
    main, the tag, the receipt and the model on this machine agree; so do data set and tokenizer;
    each failure exited with the code that says whether a retry helps, and one message;
    and, in every fourth trial, a further run writes nothing, and another card adds one commit to the branch.

The trials cover each kind of request before and after its effect, then go through the others in random order.
"""

import argparse
import contextlib
import itertools
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from random import Random

from benchmarks.measurements import RESULTS, Measurement, compare, record
from benchmarks.runs.hub_server import WRITER, Fault, Hub, Repository
from benchmarks.runs.publisher import PUBLISH, PUSH_FIRST_STEP, start
from benchmarks.runs.small_pipeline import REPOSITORY, SMALL, copied_code, make_project, remove, run
from stages.formats.documents import CLEAN, shard_paths
from stages.formats.model_folder import CHECKPOINTS, weights_sha256
from stages.formats.model_folder import TOKENIZER as TOKENIZER_FOLDER
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution
from stages.formats.revision.provenance import Receipt, run_branch, step_name, step_tag
from stages.formats.splits import SPLITS
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import EXIT_UNAVAILABLE, EXIT_USER_ERROR

FOLDER = Path(".parrotflow/publish_faults")

EXPORT_STEPS = (10, 15)
DATA, TOKENIZER = "me/documents", "me/tokenizer"
NAMED = {"repository": REPOSITORY, "dataset_repository": DATA, "tokenizer_repository": TOKENIZER}

BEFORE = ("500", "503", "429", "409", "412", "401", "cut", "portal", "kill")
AFTER = ("lost", "late", "killed")
"""Kinds of faults (`Fault.kind`), by whether the request has had its effect."""

DENIED = ("401",)
KILLS = ("kill", "killed")

PATHS = {"Xet": "", "LFS": "1"}
"""How large files travel -> HF_HUB_DISABLE_XET."""

NOT_NEEDED = shutil.ignore_patterns(".parrotflow", ".git", ".dvc", "stages", "curves", "dvc.lock")
"""Of the project, for a trial. To draw the curves and to read dvc.lock would take nine tenths of a trial's time."""

RERUNS_AT_MOST = 6
REPEATED_EVERY = 4
SECONDS_AT_MOST = 300.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One fault: which request of which path goes wrong, and how."""

    number: int
    path: str
    call: int
    """Which request of the undisturbed protocol, counted from 0."""
    kind: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended."""

    trial: Trial
    hit: str
    """The request that was struck; empty where the publication ended before."""
    codes: list[int]
    """Exit codes, of the pusher and of each publication."""
    fault: str
    """What is wrong; empty where all is right."""


def main() -> None:
    """Run the trials and record how many ended right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16 trials; nothing is recorded")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--trial", type=int, help="only this one")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    project = prepared(arguments.folder.absolute())
    trials = choose(project, 16 if arguments.quick else arguments.trials)
    if arguments.trial is not None:
        trials = [trials[arguments.trial]]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        outcomes = list(pool.map(lambda trial: run_trial(trial, project), trials))
    record("publish_faults", summary(outcomes), RESULTS, quick=arguments.quick or arguments.trial is not None)
    wrong = [f"trial {one.trial.number}: {one.fault}" for one in outcomes if one.fault]
    print(f"{len(outcomes) - len(wrong)} of {len(outcomes)} right")
    if wrong:
        raise SystemExit("\n".join(wrong))


def prepared(folder: Path) -> Path:
    """A project of which everything but publish is up to date; made once, by the real pipeline."""
    SMALL["train.export_steps"] = list(EXPORT_STEPS)
    project = folder / copied_code()
    if not project.exists():
        partial = project.with_name(f"{project.name}.partial")
        remove(partial)
        make_project(partial)
        run([sys.executable, "-m", "flows.cli", "run", "evaluate", "generate", "score", "harness"], partial)
        with contextlib.chdir(partial):
            if not TRAIN_EXECUTION.exists():
                fingerprint = next(CHECKPOINTS.iterdir()).name
                Execution(weights_sha256=weights_sha256(), fingerprint=fingerprint, sessions=[], checkpoints={}).write()
        params = (partial / "params.yaml").read_text(encoding="utf-8")
        for name, value in NAMED.items():
            params = params.replace(f"\n  {name}: null", f"\n  {name}: {value}", 1)
        (partial / "params.yaml").write_text(params, encoding="utf-8")
        partial.rename(project)
    return project


def choose(project: Path, count: int) -> list[Trial]:
    """Trials that strike each kind of request before and after its effect, on both paths; then random others."""
    first: list[tuple[str, int, str]] = []
    rest: list[tuple[str, int, str]] = []
    chance = Random("publish faults")
    befores, afters = itertools.cycle(BEFORE), itertools.cycle(AFTER)
    for path in PATHS:
        seen = set()
        for number, request in enumerate(undisturbed(path, project)):
            named = kind_of(request)
            first_of_its_kind = named not in seen
            seen.add(named)
            (first if first_of_its_kind else rest).extend([(path, number, next(befores)), (path, number, next(afters))])
    chance.shuffle(rest)
    repeated = ((path, call, chance.choice(BEFORE + AFTER)) for path, call, _ in itertools.cycle(rest))
    chosen = itertools.islice(itertools.chain(first, rest, repeated), count)
    return [Trial(number, *values) for number, values in enumerate(chosen)]


def kind_of(request: str) -> str:
    """A request without the ids in it."""
    return re.sub(r"[0-9a-f]{16,64}", "*", request.split("?", maxsplit=1)[0])


def undisturbed(path: str, project: Path) -> list[str]:
    """The requests of the whole protocol, in order."""
    with Scene(project, path, f"undisturbed-{path}") as scene:
        for module in (PUSH_FIRST_STEP, PUBLISH):
            code, output = scene.publish(module)
            if code:
                raise SystemExit(f"undisturbed, by {path}: exited with {code}:\n{output}")
        return list(scene.hub.log)


class Scene:
    """A copy of the project and a Hub of its own."""

    def __init__(self, project: Path, path: str, name: str) -> None:
        self.folder, self.path = project.parent / name, path
        remove(self.folder)
        self.project = self.folder / "project"
        shutil.copytree(project, self.project, ignore=NOT_NEEDED)
        self.hub = Hub(self.folder / "hub")

    def __enter__(self) -> "Scene":
        self.hub.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.hub.__exit__()
        remove(self.folder)

    def publish(self, module: str = PUBLISH) -> tuple[int, str]:
        """Exit code and output."""
        environment = {
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_TOKEN": WRITER,
            "HF_HOME": str(self.folder / "home"),
            "HF_HUB_DISABLE_XET": PATHS[self.path],
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_XET_CLIENT_RETRY_MAX_DURATION": "1s",
            "PATH": "/usr/bin:/bin",
        }
        publisher = start(module, self.project, environment)
        self.hub.kill_client = publisher.process.kill
        return publisher.wait(SECONDS_AT_MOST)


def run_trial(trial: Trial, project: Path) -> Outcome:
    """One fault, plain reruns, and what is there then."""
    with Scene(project, trial.path, f"trial-{trial.number}") as scene:
        fault = Fault(".*", trial.kind)
        scene.hub.faults += [Fault(".*", "none", trial.call), fault]
        runs = [scene.publish(PUSH_FIRST_STEP), scene.publish()]
        scene.hub.faults.clear()
        while runs[-1][0] and len(runs) < RERUNS_AT_MOST:
            runs.append(scene.publish())
        codes = [code for code, _ in runs]
        try:
            wrong = wrong_exits(trial, runs) or wrong_state(scene)
            if not wrong and trial.number % REPEATED_EVERY == 0:
                wrong = wrong_repetition(scene)
        except (OSError, KeyError, ValueError) as error:
            wrong = f"{type(error).__name__}: {error}"
    outcome = Outcome(trial, kind_of(fault.hit), codes, wrong)
    print(
        f"{trial.number:4} {trial.path} {trial.kind:6} {outcome.hit or 'ended before'}: {codes} {wrong or 'right'}",
        flush=True,
    )
    return outcome


def wrong_exits(trial: Trial, runs: list[tuple[int, str]]) -> str:
    """What is wrong with how the processes ended."""
    expected = {0, EXIT_UNAVAILABLE}
    expected |= {EXIT_USER_ERROR} if trial.kind in DENIED else set()
    expected |= {-9} if trial.kind in KILLS else set()
    for code, output in runs:
        errors = sum(line.startswith("error: ") for line in output.splitlines())
        if code not in expected or "Traceback" in output or errors != (code > 0):
            return f"exit code {code} with {errors} messages: {output[-1500:]}"
    return "" if runs[-1][0] == 0 else f"no success after {len(runs)} runs"


def wrong_state(scene: Scene, models: int = 1) -> str:
    """What is wrong on the Hub; `models` have been published, one card after the other."""
    receipt = Receipt.read(scene.project / "published/tiny/receipt.json")
    repository = scene.hub.repositories[REPOSITORY]
    branch = run_branch(str(receipt.run))
    titles = repository.git("log", "--reverse", "--format=%s", branch).decode().splitlines()[1:]
    expected = [*(step_name(step) for step in EXPORT_STEPS), *["model"] * models]
    if [title.split(" of run ")[0] for title in titles] != expected:
        return f"commits on {branch}: {titles}"
    if sorted(repository.refs("heads")) != sorted({branch, "main"}):
        return f"branches: {repository.refs('heads')}"
    tags = {step_tag(str(receipt.revision), step): commit for step, commit in receipt.steps.items()}
    tags |= {str(receipt.revision): str(receipt.commit)}
    there = repository.refs("tags")
    if {tag: there.get(tag) for tag in tags} != tags or len(there) != models * len(tags):
        return f"tags {there}, receipt {tags}"
    return wrong_files(scene, repository, receipt) or wrong_others(scene, receipt)


def wrong_files(scene: Scene, repository: Repository, receipt: Receipt) -> str:
    """Which files on the Hub are not those on this machine."""
    model = scene.project / "model"
    steps = {commit: model / step_name(step) for step, commit in receipt.steps.items()}
    for commit, folder in {**steps, str(receipt.commit): model}.items():
        there = hashes(scene.hub, repository, commit)
        here = {file.name: file_sha256(file) for file in folder.iterdir() if file.is_file()}
        if {path: there.get(path) for path in here} != here:
            return f"the files of {folder} differ at {commit}"
    there = hashes(scene.hub, repository, str(receipt.commit))
    if {path: there.get(path) for path in receipt.sha256} != receipt.sha256:
        return "the tag differs from the receipt"
    return "" if hashes(scene.hub, repository, "main") == there else "main differs from the tag"


def wrong_others(scene: Scene, receipt: Receipt) -> str:
    """What is wrong with data set and tokenizer."""
    tokenizer = {file.name: file for file in (scene.project / TOKENIZER_FOLDER).iterdir()}
    shards = {
        f"data/{split}/{shard.name}": shard for split in SPLITS for shard in shard_paths(scene.project / CLEAN / split)
    }
    for name, files in {f"datasets/{DATA}": shards, TOKENIZER: tokenizer}.items():
        repository = scene.hub.repositories[name]
        commit = receipt.others[name]
        if repository.commit_count("main") != 2 or list(repository.refs("tags").values()) != [commit]:
            return f"{name}: {repository.commit_count('main')} commits, tags {repository.refs('tags')}"
        there = hashes(scene.hub, repository, "main")
        if {path: there.get(path) for path in files} != {path: file_sha256(file) for path, file in files.items()}:
            return f"{name}: files differ"
    return ""


def hashes(hub: Hub, repository: Repository, commit: str) -> dict[str, str]:
    """File of a commit -> sha256."""
    found = {}
    for path, (blob, size) in repository.tree(repository.resolve(commit)).items():
        large = hub.lfs_info(repository, blob, size)
        found[path] = str(large["oid"]) if large else sha256(repository.read(blob)).hexdigest()
    return found


def wrong_repetition(scene: Scene) -> str:
    """What is wrong with a further run, and with one with another card."""
    before = len(scene.hub.log)
    code, output = scene.publish()
    if code or [line for line in scene.hub.log[before:] if re.search("^PUT|/commit/|/tag/|/branch/", line)]:
        return f"a further run wrote something: {output}"
    params = scene.project / "params.yaml"
    text = params.read_text(encoding="utf-8")
    params.write_text(re.sub(r"\n  description: .*", "\n  description: Another card.", text), encoding="utf-8")
    code, output = scene.publish()
    return wrong_state(scene, models=2) if code == 0 else f"another card: exited with {code}: {output}"


def summary(outcomes: list[Outcome]) -> list[Measurement]:
    """A figure for each path that has trials: those of Xet come first, so a few trials have no others."""
    of_paths = {path: [one for one in outcomes if one.trial.path == path] for path in PATHS}
    return [figure(path, trials) for path, trials in of_paths.items() if trials]


def figure(path: str, outcomes: list[Outcome]) -> Measurement:
    """Trials that ended right; in words how many requests were struck and what the publisher did."""
    kinds = {one.hit for one in outcomes if one.hit}
    before = sum(one.trial.kind in BEFORE for one in outcomes)
    failed = sum(any(one.codes) for one in outcomes)
    text = (
        f"publishing by {path} with one injected fault, {before} before and {len(outcomes) - before} after the "
        f"request's effect, at {len(kinds)} kinds of requests, {failed} needing the same command again: one commit for "
        "each step, all hashes equal, and main, receipt and model in agreement"
    )
    right, unit = float(sum(not one.fault for one in outcomes)), f"of {len(outcomes)}"
    measured = compare(text, [right], None, unit=unit, higher_is_better=True, libraries=["huggingface_hub", "hf_xet"])
    return replace(measured, runs=len(outcomes))


if __name__ == "__main__":
    main()
