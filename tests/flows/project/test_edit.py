import pytest

from flows.project.edit import apply, open_yaml, yaml_text
from stages.runtime.errors import UserError
from stages.runtime.section import read_yaml


def test_an_edit_changes_its_lines_alone_and_a_mapping_that_replaces_another_keeps_equal_lines() -> None:
    lines = ["fit:", "  rate: 1   # per step", "  names: [one, two] # in order", "# of all", "all: {x: 1}"]
    values = open_yaml("\n".join([*lines, ""]))

    apply(values, {"fit": {"rate": 2, "names": ["one", "two"]}, "all": None})

    assert yaml_text(values).splitlines() == [lines[0], "  rate: 2   # per step", *lines[2:4], "all: null"]
    assert read_yaml(yaml_text(values)) == values


def test_a_mapping_that_becomes_empty_stays_on_the_line_of_its_key() -> None:
    values = open_yaml("fit:\n  model:   # its fields\n    width: 1\n  rate: 1\n")

    apply(values, {"fit.model": {}})

    assert read_yaml(yaml_text(values)) == {"fit": {"model": {}, "rate": 1}}
    assert "# its fields" in yaml_text(values)


def test_values_are_set_one_after_the_other_by_their_dotted_keys_also_below_a_null() -> None:
    values = {"a": {"b": 1, "c": None}}

    apply(values, {"a.b": {"x": 1}, "a.b.y": 2, "a.c.d.e": 3, "a.c.f.g": 4, "a.d": []})

    assert values == {"a": {"b": {"x": 1, "y": 2}, "c": {"d": {"e": 3}, "f": {"g": 4}}, "d": []}}


@pytest.mark.parametrize(("key", "place"), [("b.c", "b"), ("a.b.c", "a.b"), ("a.b.c.d", "a.b")])
def test_a_key_that_leads_nowhere_is_refused(key: str, place: str) -> None:
    with pytest.raises(UserError, match=rf"^{key}: params\.yaml has no `{place}`$"):
        apply({"a": {"b": 1}}, {key: 2})
