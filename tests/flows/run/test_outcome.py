"""What a run shows of its stages."""

from pathlib import Path

import pytest

from flows.plan.graph import PlannedStage
from flows.plan.settings import Policy, Show
from flows.run.outcome import shown_metrics


def test_a_metric_of_zero_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("score.json").write_text('{"pass_at_1": 0}')
    show = Show(metrics={"pass@1": "score.json:pass_at_1", "absent": "score.json:none"})

    assert shown_metrics([PlannedStage("score", "clean", (), (), Policy(show=show))]) == {"pass@1": 0}
