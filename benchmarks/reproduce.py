"""Is a published revision rebuilt bit for bit, and is it said truthfully where it is not?

    python -m benchmarks.reproduce [--quick] [--steps N] [--python PATH]

The default model (with --quick a tiny one) is trained and published to the folder, from a committed tree and from one
that was not, and rebuilt from scratch in another folder by `parrotflow reproduce`: under the recorded settings, with
another number of threads, as another kind of CPU (by the libraries' switches), and by the interpreter PATH, which has
another version of a library. Last, the end of the run is checked by its segment (not with --steps, which makes
the default model's run shorter).

A verdict is true where it says bit-identical and the weights' sha256 is that of the revision, or where it says
otherwise and lists the fact that was changed. (With another library a report may differ that names it.)
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.measurements import Measurement, compare, record
from benchmarks.runs.small_pipeline import ROOT, Edit, environment, make_project, run
from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.revision.execution import TRAIN_EXECUTION, Execution
from stages.runtime.section import read_params_file

CORES = os.cpu_count() or 1

TINY = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 64}
"""Small, and large enough for its sums to be divided among threads."""

UNCOMMITTED = Edit("stages/train/optim/muon.py", "ITERATIONS = 5", "ITERATIONS = 4")
"""A change of the code that changes the weights."""

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


@dataclass(frozen=True, slots=True)
class Case:
    """One reproduction, and what is to be said where it is not bit-identical."""

    name: str
    options: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    """Facts, one of which must be listed if it is not bit-identical; none: it must be."""


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model instead of the default one")
    parser.add_argument("--steps", type=int, help="of the default model's training, instead of all")
    parser.add_argument("--python", type=Path, help="an interpreter with another version of a library")
    arguments = parser.parse_args()
    model = "a tiny model" if arguments.quick else "the default model"
    if arguments.steps:
        model += f" trained for {arguments.steps} steps"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        committed = project(folder / "committed", arguments.quick, arguments.steps)
        seconds = publish(committed)
        changed = project(folder / "changed", arguments.quick, arguments.steps)
        UNCOMMITTED.apply(changed)
        publish(changed)
        if weights_sha256(changed / MODEL) == weights_sha256(committed / MODEL):
            raise SystemExit(f"{UNCOMMITTED.name}: changes nothing")
        figures = [
            reproduced(folder, source, case, model)
            for source, cases in ((committed, cases_of(arguments.python)), (changed, [Case("an uncommitted tree")]))
            for case in cases
        ]
        if not arguments.steps:
            part = f"checking the steps between the last two checkpoints of {model}, share of its run"
            figures.append(percent(part, segment_seconds(committed) / seconds))
    record("reproduce", figures, quick=arguments.quick)


def cases_of(python: Path | None) -> list[Case]:
    """The reproductions of the committed tree."""
    cases = [
        Case("the recorded settings"),
        Case("another number of threads", settings({"OMP_NUM_THREADS": str(CORES + 1)}), ("threads_per_process",)),
        Case("another kind of CPU", settings(AVX2), ("cpu_capability", "isa_limits")),
    ]
    if python is None:
        print("another library: skipped; name an interpreter that has one with --python", flush=True)
        return cases
    return [*cases, Case("another library", ("--python", str(python.absolute()), "--this-environment"), ("library ",))]


def settings(values: dict[str, str]) -> tuple[str, ...]:
    """The options for execution settings."""
    return tuple(part for name, value in values.items() for part in ("--set", f"{name}={value}"))


def project(folder: Path, quick: bool, steps: int | None) -> Path:
    """A project in which nothing has run: the small pipeline, or a clone of this repository's commit."""
    if quick:
        make_project(folder)
    else:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    params = read_params_file(folder / "params.yaml")
    if quick:
        params["train"]["model"] |= TINY
        params["train"] |= {"sequence_length": 64, "global_batch_size": 16, "checkpoint_every_steps": 4}
    if steps:
        params["train"]["max_steps"] = steps
    if quick or steps:
        (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
        run(["git", "-c", "user.name=c", "-c", "user.email=c@example.org", "commit", "-qam", "smaller"], folder)
    return folder


def publish(folder: Path) -> float:
    """Run everything, and publish to the folder; seconds."""
    began = time.monotonic()
    run([sys.executable, "-m", "flows.cli", "run", "publish"], folder, OMP_NUM_THREADS=str(CORES))
    return time.monotonic() - began


def reproduced(folder: Path, source: Path, case: Case, model: str) -> Measurement:
    """Whether the verdict on one case is true, as 1 or 0."""
    revision = next((source / "published").glob("*/main"))
    work = folder / "work"
    options = ["--folder", str(work), "--source", str(source), "--from-scratch", *case.options]
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "reproduce", str(revision), "--yes", *options],
        cwd=folder,
        env=environment(ROOT, PARROTFLOW_WORKERS=str(CORES)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    verdicts = ("bit-identical", "equal within intervals", "not reproduced")
    found = [line for line in done.stdout.splitlines() if line.startswith(verdicts)]
    if not found:
        raise SystemExit(f"{case.name}: exited with {done.returncode}, without a verdict:\n{done.stdout[-3000:]}")
    verdict = found[-1].partition(":")[0]
    same = weights_sha256(work / "checkout" / MODEL) == weights_sha256(revision)
    named = any(f"\ndiffers: {fact}" in done.stdout for fact in case.facts)
    true = same if verdict == "bit-identical" else named
    print(f"{case.name}: {verdict}, weights {'the same' if same else 'others'}", *found, sep="\n", flush=True)
    shutil.rmtree(work)
    return compare(
        f"{model} rebuilt from {case.name}: `{verdict}`, which is true",
        [float(true)],
        None,
        unit="of 1",
        higher_is_better=True,
        libraries=["torch", "accelerate", "dvc"],
    )


def segment_seconds(folder: Path) -> float:
    """How long it takes to check the run between its last two checkpoints. Ends the benchmark if they differ."""
    execution = Execution.find(folder / TRAIN_EXECUTION)
    if execution is None:
        raise SystemExit(f"{folder / TRAIN_EXECUTION}: not there")
    first, last = sorted(execution.checkpoints)[-2:]
    began = time.monotonic()
    run([sys.executable, "-m", "stages.train.segment", "--from", str(first), "--to", str(last)], folder)
    return time.monotonic() - began


def percent(figure: str, share: float) -> Measurement:
    """A share of time."""
    return compare(
        figure, [100 * share], None, unit="%", higher_is_better=False, libraries=["torch", "accelerate", "dvc"]
    )


if __name__ == "__main__":
    main()
