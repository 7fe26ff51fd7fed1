import pytest

from stages.runtime.entry import UserError, whole_number


def test_a_variable_that_is_unset_or_empty_leaves_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBER", raising=False)
    assert whole_number("NUMBER", 7) == 7
    monkeypatch.setenv("NUMBER", "")
    assert whole_number("NUMBER", None) is None
    monkeypatch.setenv("NUMBER", "3")
    assert whole_number("NUMBER", 7) == 3
    monkeypatch.setenv("NUMBER", "0")
    assert whole_number("NUMBER", 7, minimum=0) == 0


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "\u00b2"])
def test_anything_but_a_whole_number_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBER", value)

    with pytest.raises(UserError, match=f"NUMBER={value}: expected a whole number, 1 or more"):
        whole_number("NUMBER", 7)
