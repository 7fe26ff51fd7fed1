"""`parrotflow params GROUP=CHOICE key=value ...`: compose conf/ into params.yaml, by Hydra's compose API.

A group is a folder of `conf/`, a choice a file in it: values for sections of params.yaml. params.yaml stays the only
place that the stages read, so that DVC sees every change; its comments, its order and its indentation stay too.

A word `compute=` is for the dial, a program of the stage `train`, which turns compute into values. The words before it
count for what it chooses, those after it win over it.

    parrotflow params compute=20 train.seed=1
    parrotflow params corpus=installed compute=2h
"""

import difflib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, get_origin

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from ruamel.yaml.error import YAMLError

from flows.project.edit import apply, edited, open_yaml
from stages.runtime.errors import UserError, first_line
from stages.runtime.preflight import check_params, require_texts_as_keys, section_models
from stages.runtime.section import PARAMS_FILE, flatten, read_params_file, read_yaml, value_at

CONF = Path("conf")

FORECAST = "stages.train.commands.forecast"
"""The program that builds a model without weights and says what its training costs."""

TEXT_OF_BASE = "\ue000{"
"""Replaces `${` in the base while Hydra composes, which would interpolate it; a character for private use."""


def groups(conf: Path = CONF) -> dict[str, list[str]]:
    """The groups and their choices. Raises UserError where there are none."""
    if not conf.is_dir():
        raise UserError(f"{conf}/: not found, which has the presets; run this from the project's root")
    folders = sorted(path for path in conf.iterdir() if path.is_dir())
    return {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in folders}


def composed_text(words: Sequence[str], params_file: Path = PARAMS_FILE, conf: Path = CONF) -> str:
    """params.yaml's text after the given `GROUP=CHOICE` and `key=value` words.

    Raises UserError on an unknown group, choice or key, and where the result would be refused by a stage.
    """
    return text_with(composed_values(words, read_params_file(params_file), conf), params_file)


def composed_values(words: Sequence[str], base: dict[str, Any], conf: Path = CONF) -> dict[str, Any]:
    """The values of `base` after the words. Raises UserError on an unknown group, choice or key."""
    known, free = groups(conf), open_mappings()
    for word in words:
        check_word(word, known)
    added = tuple(f"{section}.{key}" for section, key in free)
    for word in words:  # one after the other: later words win
        override = f"++{_quoted(word)}" if word.startswith(added) else _quoted(word)
        if word.split("=")[0] in known:
            override = f"+{word}"
            given, base = _composed({}, override, conf), deepcopy(base)
            for section, key in free:
                if given.get(section, {}).get(key) is not None and section in base:
                    base[section][key] = {}
        base = _composed(base, override, conf)
    return base


def _quoted(word: str) -> str:
    """The word in Hydra's grammar: a text that it cannot read, such as `Hello, world (2)`, is put in quotes."""
    key, _, value = word.partition("=")
    try:
        is_text = OverridesParser.create().parse_override(word).is_sweep_override()
    except HydraException:
        is_text = value[0] not in "[{\"'"
    return f"{key}='{value.replace(chr(39), chr(92) + chr(39))}'" if is_text else word


def open_mappings() -> list[tuple[str, str]]:
    """Sections and keys of params.yaml whose mappings have keys of their own, such as an architecture's fields.

    A preset replaces such a mapping as a whole, and a word may add a key; all others are merged.
    """
    models = section_models().items()
    fields = ((name, key, field.annotation) for name, model in models for key, field in model.model_fields.items())
    return [(name, key) for name, key, kind in fields if get_origin(kind) is dict]


def text_with(values: dict[str, Any], params_file: Path = PARAMS_FILE) -> str:
    """params.yaml's text with these values, its comments kept. Raises UserError where a stage would refuse a value."""
    text = params_file.read_text(encoding="utf-8")
    if values != read_params_file(params_file):
        try:
            document = open_yaml(text)
        except YAMLError as error:
            raise UserError(f"{params_file}: {' '.join(str(error).split())}") from None
        apply(document, values)
        text = edited(text, document)
    _refuse_faults(text, params_file)
    return text


def preset(group: str, choice: str, conf: Path = CONF) -> dict[str, Any]:
    """The values of one choice by their dotted keys; a value that is replaced whole stays one. Raises UserError."""
    check_word(f"{group}={choice}", groups(conf))
    values = _composed({}, f"+{group}={choice}", conf)
    flat = flatten(values)
    for dotted in map(".".join, open_mappings()):
        if (whole := value_at(values, dotted)) is not None:
            flat = {key: value for key, value in flat.items() if not key.startswith(f"{dotted}.")} | {dotted: whole}
    return flat


def check_word(word: str, known: dict[str, list[str]]) -> None:
    """Raise UserError if a word is neither GROUP=CHOICE nor key=value."""
    name, _, value = word.partition("=")
    if not value:
        raise UserError(f"{word}: expected GROUP=CHOICE or key=value; {describe(known)}")
    if name in known and value not in known[name]:
        raise UserError(f"{word}: no such choice; conf/{name} has {', '.join(known[name])}")
    last = name.rpartition(".")[2]
    if name not in known and value in known.get(last, ()):
        raise UserError(f"{word}: give a choice of conf/{last} as {last}={value}")
    if name not in known and "." not in name:
        raise UserError(f"{word}: no such group; {describe(known)}")


def describe(known: dict[str, list[str]]) -> str:
    """The groups with their choices, and the dial, in one line."""
    listed = [f"{group}: {', '.join(choices)}" for group, choices in known.items()]
    return "; ".join([*listed, "compute: TFLOP such as 20, or a time such as 10min"])


def difference(before: str, after: str, name: str = str(PARAMS_FILE)) -> list[str]:
    """The unified difference of two texts, a line each."""
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=2, lineterm=""))


def changes_training(before: str, after: str) -> bool:
    """Whether two texts of params.yaml differ in a section that describes a model."""
    old, new = read_yaml(before), read_yaml(after)
    return any(
        isinstance(section, dict) and isinstance(section.get("model"), dict) and old.get(name) != section
        for name, section in new.items()
    )


def answer(module: str, text: str, *arguments: str) -> str:
    """Return what a program of a stage prints about a text of params.yaml, given further arguments.

    Raises UserError with its message if it refuses the text, for example because a model cannot be built.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        line = [sys.executable, "-m", module, file.name, *arguments]
        done = subprocess.run(line, check=False, capture_output=True, text=True)
    if done.returncode:
        message = done.stderr.strip().rpartition("error: ")[2] or f"{module} exited with {done.returncode}"
        raise UserError(f"{message}; {PARAMS_FILE} is left as it was")
    return done.stdout


def with_text(values: Any, old: str, new: str) -> Any:
    """The values with `old` replaced by `new` in every text."""
    if isinstance(values, dict):
        return {key: with_text(value, old, new) for key, value in values.items()}
    if isinstance(values, list):
        return [with_text(value, old, new) for value in values]
    return values.replace(old, new) if isinstance(values, str) else values


def _composed(base: dict[str, Any], override: str, conf: Path) -> dict[str, Any]:
    # Text of params.yaml is text: only presets and words may interpolate.
    require_texts_as_keys(base, str(PARAMS_FILE))
    try:
        node = OmegaConf.create(with_text(base, "${", TEXT_OF_BASE))
    except OmegaConfBaseException as error:
        raise UserError(f"{PARAMS_FILE}: {error.full_key}: {first_line(error)}; write it in quotes") from None
    ConfigStore.instance().store(name="base", node=node)
    try:
        with initialize_config_dir(str(conf.absolute()), version_base=None):
            config = compose("base", overrides=[override])
        values = OmegaConf.to_container(config, resolve=True)
    except OverrideParseException as error:
        raise UserError(
            f"{error.override}: Hydra cannot read this ({first_line(error)}); write it into {PARAMS_FILE} by hand"
        ) from None
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_explained(first_line(error), override, base)) from None
    assert isinstance(values, dict)
    return {str(key): with_text(value, TEXT_OF_BASE, "${") for key, value in values.items()}


def _explained(said: str, override: str, base: dict[str, Any]) -> str:
    """Hydra's words, or ours if a key is misspelt."""
    unknown = re.match(r"Could not override '(.+)'", said)
    if not unknown:
        return f"{override.lstrip('+')}: Hydra cannot take this ({said}); write it into {PARAMS_FILE} by hand"
    near = difflib.get_close_matches(unknown[1], flatten(base), n=1)
    return f"{unknown[1]}: no such parameter{f'; did you mean {near[0]}?' if near else ''}"


def _refuse_faults(text: str, params_file: Path) -> None:
    trial = params_file.with_name(f".{params_file.name}.partial")
    trial.write_text(text, encoding="utf-8")
    try:
        check_params(trial)
    except UserError as error:
        raise UserError(str(error).replace(str(trial), str(params_file))) from None
    finally:
        trial.unlink()


DIAL = "stages.train.commands.dial"
"""The program that chooses values for an amount of compute."""

WORD = "compute"

SECONDS = {"s": 1, "min": 60, "h": 3600}


def composed_with_dial(words: Sequence[str], params_file: Path = PARAMS_FILE) -> tuple[str, list[str]]:
    """params.yaml's text after the words, and the dial's lines; no lines without a word `compute=`.

    Raises UserError as `composed_text`, and where the dial refuses the compute.
    """
    of_dial = [index for index, word in enumerate(words) if word.partition("=")[0] == WORD]
    if not of_dial:
        return composed_text(words, params_file), []
    if len(of_dial) > 1:
        raise UserError(f"{' '.join(words[index] for index in of_dial)}: give compute once")
    (index,) = of_dial
    asked = option(words[index])
    before = composed_values(words[:index], read_params_file(params_file))
    chosen = json.loads(answer(DIAL, text_with(before, params_file), *asked))
    for key, value in chosen["values"].items():
        put(before, key, value)
    after = composed_values(words[index + 1 :], before)
    return text_with(after, params_file), [str(line) for line in chosen["lines"]]


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
    """Replace the value at a dotted key, or add it to the mapping there."""
    place, _, name = key.rpartition(".")
    value_at(values, place)[name] = value
