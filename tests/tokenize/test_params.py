import pytest

from stages.tokenize.params import TokenizeParams


@pytest.mark.parametrize(
    ("engine", "kind", "warned"),
    [("fastokens", "characters", True), ("tokenizers", "characters", False), ("fastokens", "bpe", False)],
)
def test_an_engine_that_cannot_encode_by_characters_is_named_before_the_run(
    engine: str, kind: str, warned: bool
) -> None:
    warnings = TokenizeParams.model_validate({"engine": engine}).warnings({"tokenizer": {"kind": kind}})

    assert [warning.partition(": set ")[2] for warning in warnings] == [
        "tokenize.engine: tokenizers in params.yaml"
    ] * warned
