"""How text becomes ids."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from stages.runtime.section import Section, value_at


class TokenizeParams(Section):
    """The section `tokenize` of params.yaml."""

    engine: Literal["fastokens", "tokenizers"]
    """The encoder. `fastokens` is many times faster; if it gives other ids than `tokenizers`, the stage refuses."""

    def check(self, others: Mapping[str, Any]) -> Iterator[str]:
        """The engine can encode by characters if the tokenizer does."""
        if self.engine != "tokenizers" and value_at(others, "tokenizer.kind") == "characters":
            yield "tokenize.engine: tokenizer.kind = characters needs tokenize.engine: tokenizers"
