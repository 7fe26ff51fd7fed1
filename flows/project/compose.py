"""`parrotflow params GROUP=CHOICE key=value ...`: write presets of conf/ and values into params.yaml.

A group is a folder of `conf/`, a choice a file in it; its `defaults` are choices of the group that it begins from.
Choices and words are both values by their dotted keys, set one after the other. params.yaml stays the only place that
the stages read, so that DVC sees every change; its comments and its order stay. Its lines have the form in which `dvc
exp run -S` writes them too.

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
from collections.abc import Mapping, Sequence
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any, get_origin

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.runtime.credentials import refuse_credentials
from stages.runtime.errors import UserError
from stages.runtime.preflight import check_params, section_models
from stages.runtime.section import PARAMS_FILE, flatten, read_params_file, read_yaml, value_at, yaml_fault

CONF = Path("conf")

FORECAST = "stages.train.commands.forecast"
"""The program that builds a model without weights and says what its training costs."""

DIAL = "stages.train.commands.dial"
"""The program that chooses values for an amount of compute."""

COMPUTE_WORD = "compute"

SECONDS_PER_UNIT = {"s": 1, "min": 60, "h": 3600}


def preset_groups(conf: Path = CONF) -> dict[str, list[str]]:
    """Return the groups and their choices. Raises UserError if there are none."""
    if not conf.is_dir():
        raise UserError(f"{conf}/: not found, which has the presets; run this from the project's root")
    folders = sorted(path for path in conf.iterdir() if path.is_dir())
    return {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in folders}


def composed_text(words: Sequence[str], params_file: Path = PARAMS_FILE, conf: Path = CONF) -> str:
    """Return params.yaml's text after the words. Raises as `composed_with_dial`."""
    return composed_with_dial(words, params_file, conf)[0]


def composed_with_dial(
    words: Sequence[str], params_file: Path = PARAMS_FILE, conf: Path = CONF
) -> tuple[str, list[str]]:
    """Return params.yaml's text after the words, and the dial's lines; no lines without a word `compute=`.

    Raises UserError on an unknown group, choice or key, and if a stage or the dial would refuse a value.
    """
    of_dial = [word for word in words if word.partition("=")[0] == COMPUTE_WORD]
    if len(of_dial) > 1:
        raise UserError(f"{' '.join(of_dial)}: give compute once")
    asked = [argument for word in of_dial for argument in option(word)]
    read_params_file(params_file)  # says what is wrong with it
    known, lines = preset_groups(conf), list[str]()
    for word in words:
        if word not in of_dial:
            check_word(word, known)
    text = params_file.read_text(encoding="utf-8")
    try:
        values = open_yaml(text)
    except YAMLError as error:
        raise UserError(f"{params_file}: {yaml_fault(error)}") from None
    for word in words:
        key, _, given = word.partition("=")
        if key == COMPUTE_WORD:
            chosen = json.loads(answer(DIAL, checked_text(yaml_text(values), params_file), *asked))
            apply(values, chosen["values"])
            lines = [str(line) for line in chosen["lines"]]
        elif key in known:
            apply(values, preset(key, given, conf))
        else:
            refuse_unknown(key, values)
            apply(values, {key: value_of(word)})
    return checked_text(yaml_text(values), params_file), lines


def preset(group: str, choice: str, conf: Path = CONF) -> dict[str, Any]:
    """The values of one choice by their dotted keys; a value that is replaced whole stays one. Raises UserError."""
    check_word(f"{group}={choice}", preset_groups(conf))
    values = read_params_file(conf / group / f"{choice}.yaml")
    flat: dict[str, Any] = {}
    for other in values.pop("defaults", ()):
        flat |= preset(group, other, conf)
    whole = {key: value for key in open_mappings() if (value := value_at(values, key)) is not None}
    within = tuple(f"{key}." for key in whole)
    flat |= {key: value for key, value in flatten(values).items() if not key.startswith(within)} | whole
    return flat


def open_mappings() -> list[str]:
    """Return the parameters that are mappings with keys of their own, such as an architecture's fields.

    A preset replaces such a mapping as a whole, and a word may add a key; all others are merged.
    """
    models = section_models().items()
    fields = (
        (f"{name}.{key}", field.annotation) for name, model in models for key, field in model.model_fields.items()
    )
    return [key for key, kind in fields if get_origin(kind) is dict]


def refuse_unknown(key: str, values: Mapping[str, Any]) -> None:
    """Raise UserError if no parameter has this key, unless it is below an open mapping or a null."""
    known = flatten(values)
    if not any(f"{key}.".startswith(f"{one}.") or one.startswith(f"{key}.") for one in (*known, *open_mappings())):
        near = difflib.get_close_matches(key, known, n=1)
        raise UserError(f"{key}: no such parameter{f'; did you mean {near[0]}?' if near else ''}")


def value_of(word: str) -> Any:
    """The value of a word `key=value`, as params.yaml would have it. A text without quotes may contain a `#`."""
    key, _, given = word.partition("=")
    try:
        value = read_yaml(given)
    except YAMLError as error:
        raise UserError(f"{word}: {yaml_fault(error)}; write a text as {key}='\"...\"'") from None
    return given if isinstance(value, str) and given[0] not in "'\"|>!" else value


def check_word(word: str, known: dict[str, list[str]]) -> None:
    """Raise UserError if a word is neither GROUP=CHOICE nor key=value."""
    name, _, value = word.partition("=")
    if not value:
        raise UserError(f"{word}: expected GROUP=CHOICE or key=value; {describe_groups(known)}")
    if name in known and value not in known[name]:
        raise UserError(f"{word}: no such choice; conf/{name} has {', '.join(known[name])}")
    if name not in known and "." not in name:
        raise UserError(f"{word}: no such group; {describe_groups(known)}")


def describe_groups(known: dict[str, list[str]]) -> str:
    """The groups with their choices, and the dial, in one line."""
    listed = [f"{group}: {', '.join(choices)}" for group, choices in known.items()]
    return "; ".join([*listed, "compute: TFLOP such as 20, or a time such as 10min"])


def checked_text(text: str, params_file: Path) -> str:
    """Return params.yaml's new text. Raises UserError if a stage would refuse a value."""
    values = read_yaml(text)
    refuse_credentials(str(params_file), values)
    check_params(params_file, values)
    return text


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


def option(word: str) -> list[str]:
    """The command's option for `compute=20` (TFLOP), or for a time: 90s, 10min, 1.5h. Raises UserError."""
    given = re.fullmatch(rf"{COMPUTE_WORD}=(\d+\.?\d*(?:e[+-]?\d+)?)({'|'.join(SECONDS_PER_UNIT)})?", word)
    if not given or not 0 < float(given[1]) < 1e12:
        example = (
            f"TFLOP, such as {COMPUTE_WORD}=20, or a time, such as {COMPUTE_WORD}=10min ({', '.join(SECONDS_PER_UNIT)})"
        )
        raise UserError(f"{word}: expected {example}")
    if given[2]:
        return ["--seconds", str(float(given[1]) * SECONDS_PER_UNIT[given[2]])]
    return ["--tflop", given[1]]


def open_yaml(text: str) -> Any:
    """Read a text to edit it: mappings and lists that also hold its comments. Raises ruamel.yaml's YAMLError."""
    return _editor().load(text)


def apply(values: Any, overrides: Mapping[str, Any]) -> None:
    """Set plain or opened values by their dotted keys, one after the other; make mappings that are missing.

    A mapping replaces the one that is there. Raises UserError for a section that is missing, and at a key that leads
    through a value that is no mapping.
    """
    for key, value in overrides.items():
        *places, name = key.split(".")
        within = values
        for number, place in enumerate(places, 1):
            if within.get(place) is None and (place in within or number > 1):
                within[place] = {}
            within = within.get(place)
            if not isinstance(within, dict):
                raise UserError(f"{key}: {PARAMS_FILE} has no `{'.'.join(places[:number])}`")
        _replace(within, name, value)


def _replace(within: Any, name: str, value: Any) -> None:
    """Put a value at a name. If a mapping replaces a mapping, equal values in it stay, with their comments."""
    old = within.get(name)
    if isinstance(value, Mapping) and isinstance(old, Mapping):
        for gone in [each for each in old if each not in value]:
            del within[name][gone]
        for each, part in value.items():
            _replace(old, each, part)
    elif name not in within or old != value:
        within[name] = deepcopy(value)


def yaml_text(values: Any) -> str:
    """Return the text of opened values."""
    stream = StringIO()
    _editor().dump(values, stream)
    return stream.getvalue()


def _editor() -> YAML:
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 10_000, True
    yaml.representer.add_representer(
        type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return yaml
