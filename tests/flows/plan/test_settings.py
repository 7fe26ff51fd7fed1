import pytest

from flows.plan.settings import Policy, read_policy
from stages.runtime.errors import UserError


def test_a_policy_with_an_unknown_key_is_refused_by_stage_and_key() -> None:
    with pytest.raises(UserError, match=r"dvc.yaml: train.meta.flow.timeout: Extra inputs are not permitted"):
        read_policy("train", {"flow": {"timeout": 3}})
    assert read_policy("train", {"owner": "me"}) == Policy()
