"""How text becomes ids."""

from typing import Annotated, Literal

from pydantic import Field

from stages.runtime.section import Section


class TokenizeParams(Section):
    """The section `tokenize` of params.yaml."""

    engine: Literal["fastokens", "tokenizers"]
    """What encodes. `fastokens` is many times faster; if it gives other ids than `tokenizers`, the stage refuses."""
    parity_bytes: Annotated[int, Field(ge=0)]
    """Text of the corpus that both encode before the work begins. More: a slower start and a stricter comparison."""
