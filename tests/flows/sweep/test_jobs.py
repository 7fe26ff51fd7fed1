"""What several cells share is computed once, by a job before theirs."""

import itertools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.experiments.cells import Cell
from flows.experiments.record import last_runs
from flows.run.chain import Log
from flows.run.outcome import StageOutcome
from flows.sweep.jobs import Batch, BatchRun, Job, jobs_of
from flows.sweep.keys import TargetFacts

STAGES = ("collect", "tokenize", "train", "evaluate")


def batch(cells: Iterable[str], reports: Collection[str] = (), names: Mapping[str, str] = {}) -> Batch:
    """A batch of cells with these ids."""
    made = [Cell(cell, names.get(cell, f"cell-{cell}"), {}, 0, {}) for cell in cells]
    return Batch("toy", made, [STAGES[-1]], reports, (), TargetFacts(set(), set(), 0, 0.0), {}, Path("runs.jsonl"))


def contents(levels: dict[str, tuple[int, ...]]) -> dict[str, dict[str, str]]:
    """Of cells that choose a level for each stage in a row: what a stage computes follows from all levels up to it."""
    return {
        cell: {stage: f"{stage}{chosen[: number + 1]}" for number, stage in enumerate(STAGES)}
        for cell, chosen in levels.items()
    }


def test_cells_that_share_the_data_and_two_of_them_a_model_make_two_jobs_before_their_own() -> None:
    cells = contents({"a": (0, 0, 0, 0), "b": (0, 0, 0, 1), "c": (0, 0, 1, 0)})

    data, model, *own = jobs_of(batch(cells), cells, "f00")

    assert (data.cells, data.targets, data.waits_for) == (("a", "b", "c"), ("collect", "tokenize"), ())
    assert (model.cells, model.targets, model.waits_for) == (("a", "b"), ("train",), (data.key,))
    assert [(job.cells, job.targets, job.shared) for job in own] == [((cell,), ("evaluate",), False) for cell in "abc"]
    assert own[0].waits_for == own[1].waits_for == (data.key, model.key)
    assert own[2].waits_for == (data.key,)


def test_the_same_work_at_the_same_commit_has_the_same_key_unless_the_cell_has_another_name() -> None:
    made = contents({cell: (0, 0, number, 0) for number, cell in enumerate("abc")})

    def keys(commit: str, *cells: str, **names: str) -> set[str]:
        some = {cell: made[cell] for cell in cells}
        return {job.key for job in jobs_of(batch(cells, names=names), some, commit)}

    assert keys("f00", "a", "b") < keys("f00", "a", "b", "c")
    assert not keys("f00", "a", "b") & keys("bad", "a", "b")
    # A DVC experiment has the name of its cell.
    assert len(keys("f00", "a", "b") - keys("f00", "a", "b", a="renamed-a")) == 1


class Never(BatchRun):
    """Does no job."""

    async def work(self, job: Job, log: Log) -> StageOutcome:
        raise AssertionError(job)

    def collect(self, cell: Cell) -> tuple[str, Mapping[str, str]]:
        raise AssertionError(cell)


def test_if_a_shared_stage_fails_each_of_its_cells_has_failed_for_the_same_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = contents({"a": (0, 0, 0, 0), "b": (0, 0, 0, 1)})
    sweep = Never(batch(cells), "f00", cells, {})

    shared, *own = [sweep.node(job) for job in sweep.jobs]
    failed = StageOutcome(shared.name, "failed", 9.0, "tokenize: no tokens", 2)

    assert [node.upstream for node in own] == [(shared.name,)] * 2
    assert [node.blocked(failed, node.name) for node in own] == [
        StageOutcome(node.name, "failed", 0.0, failed.message, 2) for node in own
    ]
    assert {run.cell: (run.state, run.message) for run in last_runs(Path("runs.jsonl")).values()} == dict.fromkeys(
        "ab", ("failed", failed.message)
    )


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(*[st.integers(0, 2)] * len(STAGES)), min_size=1))
def test_no_stage_is_computed_by_two_jobs_and_none_begins_before_what_it_needs(
    levels: dict[str, tuple[int, ...]],
) -> None:
    cells = contents(levels)
    jobs = jobs_of(batch(cells), cells, "f00")
    computed = {job.key: results_of(job, cells) for job in jobs}
    by_key = {job.key: job for job in jobs}
    known: set[str] = set()

    for job in jobs:
        assert set(job.waits_for) <= known, "it would wait for ever"
        known.add(job.key)
        before = set(itertools.chain.from_iterable(computed[key] for key in job.waits_for))
        if job.shared:
            needed = {content for cell in job.cells for content in upstream(cells[cell], job.targets)}
            assert needed <= before | computed[job.key]
        else:
            shared = {item for key in computed if by_key[key].shared for item in computed[key]}
            assert set(cells[job.cells[0]].values()) & shared <= before
    shared_results = [item for job in jobs if job.shared for item in computed[job.key]]
    assert len(shared_results) == len(set(shared_results))
    users = [content for stages in cells.values() for content in stages.values()]
    assert set(shared_results) == {content for content in users if users.count(content) > 1}


def results_of(job: Job, cells: dict[str, dict[str, str]]) -> set[str]:
    return {cells[job.cells[0]][target] for target in job.targets}


def upstream(stages: dict[str, str], targets: tuple[str, ...]) -> set[str]:
    last = max(STAGES.index(target) for target in targets)
    return {stages[stage] for stage in STAGES[: last + 1]}
