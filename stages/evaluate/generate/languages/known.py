"""The languages that samples may be in. Another one is an entry here, and its name in `LanguageName` of params.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stages.evaluate.generate.languages import plain_text, python
from stages.evaluate.generate.languages.headers import Find, Header
from stages.evaluate.generate.params import LanguageName
from stages.evaluate.stopping import End
from stages.formats.evaluation.problems import Kind


@dataclass(frozen=True, slots=True)
class Language:
    """What the stage needs to know about a language."""

    headers: Find
    header_end: Callable[[Header], End]
    """Where the completion of a header ends."""
    parses: Callable[[str], bool] | None
    """Whether a text parses; None for a language without a grammar."""
    compiles: Callable[[str], bool] | None
    """Whether a text compiles, without running it; None for a language without a compiler here."""
    stops: Mapping[Kind, tuple[str, ...]]
    """Strings before which the completion of a problem is cut."""


LANGUAGES: dict[LanguageName, Language] = {
    "python": Language(
        headers=python.function_headers,
        header_end=python.function_end,
        parses=python.parses,
        compiles=python.compiles,
        stops={
            # Chen et al. 2021, section 2.1; `@` begins a decorated definition.
            "humaneval": ("\nclass", "\ndef", "\n#", "\n@", "\nif", "\nprint"),
            # As bigcode-evaluation-harness: the completion itself begins with `def`.
            "mbpp": ("\nclass", "\nassert", '\n"""', "\nprint", "\nif"),
        },
    ),
    "text": Language(
        headers=plain_text.paragraph_headers,
        header_end=plain_text.paragraph_end,
        parses=None,
        compiles=None,
        stops={"humaneval": ("\n\n",), "mbpp": ("\n\n",)},
    ),
}
