"""The flow compared with plain `dvc repro`: independent stages side by side, and what a run costs beyond its stages.

python -m benchmarks.flow [--quick]
"""

import argparse
import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil

from benchmarks.measurements import Measurement, compare, interleave, record
from benchmarks.runs.pipelines import PARROTFLOW, REPRO, UI, environment, make_pipeline
from flows.run.server import Server

SLEEPS = 8
LIBRARIES = ("dvc",)

SAMPLE_SECONDS = 0.05


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    runs = 2 if quick else 5
    with tempfile.TemporaryDirectory() as folder:
        figures = [
            side_by_side(Path(folder) / "short", 1, runs),
            *([] if quick else [side_by_side(Path(folder) / "long", 5, 3)]),
            nothing_to_do(Path(folder), runs),
            changed_stage(Path(folder) / "alone", runs),
            *with_server(Path(folder) / "served", runs, quick),
            per_stage(Path(folder), runs),
            memory(Path(folder), runs),
        ]
    record("flow", figures, quick=quick)


def sleeping(seconds: float) -> str:
    """A dvc.yaml of independent stages that sleep, and one that joins them."""
    stages = f"stages:\n  wait:\n    matrix: {{n: {list(range(SLEEPS))}}}\n"
    stages += f'    cmd: sleep {seconds} && echo ${{item.n}} > w${{item.n}}.txt\n    outs: ["w${{item.n}}.txt"]\n'
    joined = [f"w{number}.txt" for number in range(SLEEPS)]
    return stages + f"  join:\n    cmd: cat {' '.join(joined)} > all.txt\n    deps: {joined}\n    outs: [all.txt]\n"


def side_by_side(folder: Path, seconds: float, runs: int, where: str = "") -> Measurement:
    """8 independent stages and a join, two at once."""
    project = make_pipeline(folder, sleeping(seconds))
    sides = {"ours": partial(fresh, project, PARROTFLOW), "dvc": partial(fresh, project, REPRO)}
    measured = interleave(sides, runs)
    return compare(
        f"{SLEEPS} independent stages of {seconds:g} s and a join, on 2 slots{where}",
        measured["ours"],
        measured["dvc"],
        peer_name="dvc repro",
        unit="s",
        higher_is_better=False,
        libraries=LIBRARIES,
    )


def nothing_to_do(folder: Path, runs: int) -> Measurement:
    """A run of a pipeline that is up to date."""
    project = make_pipeline(folder / "idle", "stages:\n  one: {cmd: echo 1 > one.txt, outs: [one.txt]}\n")
    timed(project, PARROTFLOW)
    measured = interleave({"ours": lambda: timed(project, PARROTFLOW), "dvc": lambda: timed(project, REPRO)}, runs)
    return compare(
        "a run with nothing to do",
        measured["ours"],
        measured["dvc"],
        peer_name="dvc repro",
        unit="s",
        higher_is_better=False,
        libraries=LIBRARIES,
    )


def changed_stage(folder: Path, runs: int, where: str = "a server of its own") -> Measurement:
    """A run of one stage that does next to nothing, whose input has changed; `where`: Prefect's server."""
    project = make_pipeline(folder, "stages:\n  one: {cmd: cp in out, deps: [in], outs: [out]}\n")
    numbers = itertools.count()

    def changed(command: list[str]) -> float:
        (project / "in").write_text(f"{next(numbers)}\n", encoding="utf-8")
        return timed(project, command)

    changed(PARROTFLOW)
    measured = interleave({"ours": partial(changed, PARROTFLOW), "dvc": partial(changed, REPRO)}, runs)
    return compare(
        f"a run of one changed stage, {where}",
        measured["ours"],
        measured["dvc"],
        peer_name="dvc repro",
        unit="s",
        higher_is_better=False,
        libraries=("dvc", "prefect"),
    )


def with_server(folder: Path, runs: int, quick: bool) -> Iterator[Measurement]:
    """The same, and stages side by side, on the server of `parrotflow ui`."""
    up = "with `parrotflow ui` up"
    with pages_up(folder / "one"):
        yield changed_stage(folder / "one", runs, up)
    with pages_up(folder / "short"):
        yield side_by_side(folder / "short", 1, runs, f", {up}")
    if not quick:
        with pages_up(folder / "long"):
            yield side_by_side(folder / "long", 5, 3, f", {up}")


@contextlib.contextmanager
def pages_up(project: Path) -> Iterator[None]:
    """A server with pages in a folder while within."""
    project.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([*UI, "--port", str(port)], cwd=project, env=os.environ | environment()) as server:
        try:
            Server(f"http://127.0.0.1:{port}/api", server).wait()
            os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
            yield
        finally:
            os.environ.pop("PREFECT_API_URL", None)
            server.terminate()


def per_stage(folder: Path, runs: int) -> Measurement:
    """What each executed stage costs beyond its command: a chain of trivial stages against a run with nothing to do."""
    length = 6
    stages = ["stages:\n  s0: {cmd: echo 0 > f0.txt, outs: [f0.txt]}\n"]
    for number in range(1, length):
        before = number - 1
        stages.append(
            f"  s{number}: {{cmd: cp f{before}.txt f{number}.txt, deps: [f{before}.txt], outs: [f{number}.txt]}}\n"
        )
    project = make_pipeline(folder / "chain", "".join(stages))
    series = interleave({"all": lambda: fresh(project, PARROTFLOW), "none": lambda: timed(project, PARROTFLOW)}, runs)
    costs = [(whole - idle) / length for whole, idle in zip(series["all"], series["none"], strict=True)]
    return compare(
        "each executed stage, beyond its command",
        costs,
        None,
        unit="s",
        higher_is_better=False,
        libraries=LIBRARIES,
    )


def memory(folder: Path, runs: int) -> Measurement:
    """The most memory that a run's own processes take at once, without the commands of its stages."""
    project = make_pipeline(folder / "memory", sleeping(1))
    sides = {"ours": lambda: fresh(project, PARROTFLOW, peak_bytes), "dvc": lambda: fresh(project, REPRO, peak_bytes)}
    measured = interleave(sides, max(1, runs - 2))
    return compare(
        f"memory of a run's own processes, {SLEEPS} stages on 2 slots",
        [value / 1e6 for value in measured["ours"]],
        [value / 1e6 for value in measured["dvc"]],
        peer_name="dvc repro",
        unit="MB",
        higher_is_better=False,
        libraries=LIBRARIES,
    )


def fresh(project: Path, command: list[str], measure: Callable[[Path, list[str]], float] | None = None) -> float:
    """Measure a run, by default its seconds, of a pipeline of which no result exists."""
    for path in (project / "dvc.lock", project / ".dvc" / "cache"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    for path in project.glob("*.txt"):
        path.unlink()
    return (measure or timed)(project, command)


def timed(project: Path, command: list[str]) -> float:
    """Seconds of a command that succeeds."""
    began = time.perf_counter()
    subprocess.run(command, cwd=project, env=os.environ | environment(), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def peak_bytes(project: Path, command: list[str]) -> float:
    """The most memory (proportional set size) of a command and the Python processes that it starts, sampled."""
    peak = 0
    with subprocess.Popen(command, cwd=project, env=os.environ | environment(), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            found = [psutil.Process(process.pid)]
            with contextlib.suppress(psutil.Error):
                found += found[0].children(recursive=True)
            peak = max(peak, sum(map(proportional_bytes, found)))
            time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return float(peak)


def proportional_bytes(process: psutil.Process) -> int:
    """Memory of a Python process, pages that it shares counted in parts; 0 for others, and for one that has ended."""
    try:
        return int(process.memory_full_info().pss) if "python" in process.name() else 0
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
