"""How text becomes ids."""

from collections.abc import Mapping
from typing import Any, Literal

from stages.runtime.section import Section


class TokenizeParams(Section):
    """The section `tokenize` of params.yaml."""

    engine: Literal["fastokens", "tokenizers"]
    """What encodes. `fastokens` is many times faster; if it gives other ids than `tokenizers`, the stage refuses."""

    def warnings(self, params: Mapping[str, Any]) -> list[str]:
        """A warning if the engine cannot encode by characters."""
        by_characters = params.get("tokenizer", {}).get("kind") == "characters"
        if self.engine == "tokenizers" or not by_characters:
            return []
        return ["tokenize will refuse: tokenizer.kind = characters: set tokenize.engine: tokenizers in params.yaml"]
