from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.formats.evaluation.generation import Completion, read_completions, write_completions
from stages.runtime.entry import UserError

texts = st.text(st.characters(exclude_categories=["Cs"]))
completions_of_any_text = st.builds(
    Completion,
    task_id=texts,
    sample=st.integers(0, 1000),
    seed=st.integers(0, 2**64 - 1),
    completion=texts,
    ended=st.sampled_from(["eos", "stop", "length"]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(completions=st.lists(completions_of_any_text, unique_by=lambda one: one.sort_key))
def test_what_is_written_in_any_order_is_read_back_sorted(completions: list[Completion], tmp_path: Path) -> None:
    write_completions(completions, tmp_path / "a.jsonl")
    write_completions(completions[::-1], tmp_path / "b.jsonl")

    assert read_completions(tmp_path / "a.jsonl") == sorted(completions, key=lambda one: one.sort_key)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "completions.jsonl"
    whole = Completion(task_id="a", sample=0, seed=1, completion="x", ended="eos").model_dump_json()
    path.write_text(f"{whole}\n{whole.replace('eos', 'tired')}\n")

    with pytest.raises(
        UserError, match=r"completions\.jsonl: line 2: ended: Input should be 'eos', 'stop' or 'length'"
    ):
        read_completions(path)
    with pytest.raises(UserError, match=r"nowhere\.jsonl: cannot be read .* run `dvc repro generate`"):
        read_completions(tmp_path / "nowhere.jsonl")
