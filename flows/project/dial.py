"""`parrotflow params compute=...`: the stages' own command turns compute into values of params.yaml.

    parrotflow params compute=20 train.seed=1
    parrotflow params corpus=installed compute=2h

A word `compute=` may be among the others; those before it count for what it chooses, those after it win over it.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.project import compose
from stages.runtime.entry import UserError
from stages.runtime.section import PARAMS_FILE, read_params_file

COMMAND = "*/commands/dial.py"
"""The stage's command that chooses the values, below the package of stages."""

WORD = "compute"

SECONDS = {"s": 1, "min": 60, "h": 3600}


def composed_with_dial(words: Sequence[str], params_file: Path = PARAMS_FILE) -> tuple[str, list[str]]:
    """params.yaml's text after the words, and what the dial says, a line each; none where no word is `compute=`.

    Raises UserError as `compose.composed_text`, and where the dial refuses the compute.
    """
    of_dial = [index for index, word in enumerate(words) if is_of_dial(word)]
    if not of_dial:
        return compose.composed_text(words, params_file), []
    if len(of_dial) > 1:
        raise UserError(f"{' '.join(words[index] for index in of_dial)}: give compute once")
    (index,) = of_dial
    asked = option(words[index])
    before = compose.composed_values(words[:index], read_params_file(params_file))
    said = compose.ask(COMMAND, compose.text_with(before, params_file), *asked)
    if not said:
        raise UserError(f"{words[index]}: no stage of this project has a dial ({COMMAND})")
    chosen = json.loads(said)
    for key, value in chosen["values"].items():
        put(before, key, value)
    after = compose.composed_values(words[index + 1 :], before)
    return compose.text_with(after, params_file), [str(line) for line in chosen["lines"]]


def is_of_dial(word: str) -> bool:
    """Whether a word is `compute` with or without a value."""
    return word.partition("=")[0] == WORD


def option(word: str) -> list[str]:
    """The command's option for `compute=20` (TFLOP), or for a time: 90s, 10min, 1.5h. Raises UserError."""
    given = re.fullmatch(rf"{WORD}=(\d+\.?\d*(?:e[+-]?\d+)?)({'|'.join(SECONDS)})?", word)
    if not given or not 0 < float(given[1]) < 1e12:
        example = f"TFLOP, such as {WORD}=20, or a time, such as {WORD}=10min ({', '.join(SECONDS)})"
        raise UserError(f"{word}: expected {example}")
    if given[2]:
        return ["--seconds", str(float(given[1]) * SECONDS[given[2]])]
    return ["--tflop", given[1]]


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Replace the value at a dotted key."""
    *path, name = key.split(".")
    for part in path:
        values = values[part]
    values[name] = value
