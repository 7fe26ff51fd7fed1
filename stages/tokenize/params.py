"""How text becomes ids."""

from typing import Literal

from stages.runtime.section import Section


class TokenizeParams(Section):
    """The section `tokenize` of params.yaml."""

    engine: Literal["fastokens", "tokenizers"]
    """What encodes. `fastokens` is many times faster; if it gives other ids than `tokenizers`, the stage refuses."""
