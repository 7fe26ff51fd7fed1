from stages.runtime.dotted import differences, flatten, value_at

VALUES = {"a": {"b": 1, "c": {}}, "d": [1]}


def test_a_dotted_key_leads_to_a_value() -> None:
    assert value_at(VALUES, "a.b") == 1
    assert value_at(VALUES, "d") == [1]
    assert value_at(VALUES, "d.x") is None
    assert value_at(VALUES, "x.y") is None


def test_differences_reach_the_leaves() -> None:
    old, new = {"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 1, "c": 3}, "d": [1, 2], "e": None}

    assert list(differences("x", old, new)) == [("x.a.c", 2, 3), ("x.d", [1], [1, 2])]
    assert list(differences("", old, new)) == [("a.c", 2, 3), ("d", [1], [1, 2])]


def test_leaves_are_known_by_their_dotted_keys() -> None:
    assert flatten(VALUES) == {"a.b": 1, "d": [1]}
