"""`parrotflow params GROUP=CHOICE key=value ...`: write presets of conf/ and values into params.yaml.

A group is a folder in `conf/`, and a choice a file in it, which Hydra composes. Words are applied in order. Stages read
only params.yaml, so DVC detects every change; its comments and order are kept.

The word `compute=` calls the dial, a program of the stage `train` that derives values from an amount of compute. Words
before it affect its choice, words after it override it.
"""

import difflib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from ruamel.yaml.error import YAMLError

from flows.project.edit import apply, open_yaml, yaml_text
from stages.runtime.credentials import refuse_credentials
from stages.runtime.errors import UserError, did_you_mean, first_line
from stages.runtime.preflight import check_params, section_models
from stages.runtime.section import PARAMS_FILE, flatten, read_params_file, read_yaml, value_at, yaml_fault

CONF = Path("conf")

FORECAST = "stages.train.commands.forecast"
"""The program that prints the cost of a training."""

DIAL = "stages.train.commands.dial"
"""The program that chooses values for an amount of compute."""

COMPUTE_WORD = "compute"

SECONDS_PER_UNIT = {"s": 1, "min": 60, "h": 3600}


def preset_groups(conf: Path = CONF) -> dict[str, list[str]]:
    """Group -> choices. Raises UserError if conf/ is missing."""
    if not conf.is_dir():
        raise UserError(f"{conf}/: the folder of presets was not found; run this from the project's root")
    folders = sorted(path for path in conf.iterdir() if path.is_dir())
    return {folder.name: sorted(path.stem for path in folder.glob("*.yaml")) for folder in folders}


def composed_text(words: Sequence[str], params_file: Path = PARAMS_FILE) -> str:
    """params.yaml's text after applying the words. Raises as `composed_with_dial`."""
    return composed_with_dial(words, params_file)[0]


def composed_with_dial(words: Sequence[str], params_file: Path = PARAMS_FILE) -> tuple[str, list[str]]:
    """params.yaml's text after applying the words, and the dial's explanations if there is a word `compute=`.

    Raises UserError for an unknown group, choice or key, or if a stage or the dial refuses a value.
    """
    of_dial = [word for word in words if word.partition("=")[0] == COMPUTE_WORD]
    if len(of_dial) > 1:
        raise UserError(f"{' '.join(of_dial)}: give compute once")
    asked = [argument for word in of_dial for argument in option(word)]
    keys = flatten(read_params_file(params_file))
    known, lines = preset_groups(), list[str]()
    for word in words:
        if word not in of_dial:
            check_word(word, known, keys)
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
            apply(values, preset(key, given))
        else:
            refuse_unknown(key, values)
            apply(values, {key: value_of(word)})
    return checked_text(yaml_text(values), params_file), lines


def preset(group: str, choice: str) -> dict[str, Any]:
    """Dotted key -> value of a choice; the mappings of `open_mappings` are not flattened.

    Raises UserError for an unknown choice or an invalid file.
    """
    check_word(f"{group}={choice}", preset_groups())
    try:
        with initialize_config_dir(str(CONF.absolute()), version_base=None):
            values: Any = OmegaConf.to_container(compose(overrides=[f"+{group}={choice}"]), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"conf/{group}/{choice}.yaml: {first_line(error)}") from None
    flat = flatten(values)
    for dotted in open_mappings():
        if (whole := value_at(values, dotted)) is not None:
            flat = {key: value for key, value in flat.items() if not key.startswith(f"{dotted}.")} | {dotted: whole}
    return flat


def open_mappings() -> list[str]:
    """The parameters that are mappings with arbitrary keys, such as an architecture's fields.

    A preset replaces such a mapping entirely, and a word may add a key; other sections are merged.
    """
    models = section_models().items()
    fields = (
        (f"{name}.{key}", field.annotation) for name, model in models for key, field in model.model_fields.items()
    )
    return [key for key, kind in fields if get_origin(kind) is dict]


def refuse_unknown(key: str, values: Mapping[str, Any]) -> None:
    """Raise UserError if no parameter has this key, unless it is below an open mapping or a null."""
    known = flatten(values)
    if not any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in (*known, *open_mappings())):
        raise UserError(f"{key}: no such parameter{did_you_mean(key, known)}")


def value_of(word: str) -> Any:
    """The value of a word `key=value`, parsed as YAML; unquoted text may contain `#`."""
    key, _, given = word.partition("=")
    try:
        value = read_yaml(given)
    except YAMLError as error:
        raise UserError(f"{word}: {yaml_fault(error)}; write text as {key}='\"...\"'") from None
    return given if isinstance(value, str) and given[0] not in "'\"|>!" else value


def check_word(word: str, known: dict[str, list[str]], keys: Iterable[str] = ()) -> None:
    """Raise UserError if a word is neither GROUP=CHOICE nor key=value. `keys` are the parameters it may abbreviate."""
    name, _, value = word.partition("=")
    if not value:
        if name in keys:
            raise UserError(f"{word}: expected a value, as in {word}=VALUE")
        raise UserError(f"{word}: expected GROUP=CHOICE or key=value; {describe_groups(known)}")
    if name in known and value not in known[name]:
        meant = did_you_mean(value, known[name])
        raise UserError(f"{word}: no such choice; conf/{name} has {', '.join(known[name])}{meant}")
    if name not in known and "." not in name:
        if whole := [f"{key}={value}" for key in keys if key.endswith(f".{name}")]:
            raise UserError(f"{word}: name the parameter with its section: {' or '.join(whole)}")
        raise UserError(f"{word}: no such group; {describe_groups(known)}{did_you_mean(name, [*known, COMPUTE_WORD])}")


def describe_groups(known: dict[str, list[str]]) -> str:
    """The groups with their choices, and the dial, in one line."""
    listed = [f"{group}: {', '.join(choices)}" for group, choices in known.items()]
    return "; ".join([*listed, "compute: TFLOP such as 20, or a time such as 10min"])


def checked_text(text: str, params_file: Path) -> str:
    """Return `text` unchanged. Raises UserError if a stage would refuse a value in it."""
    values = read_yaml(text)
    refuse_credentials(str(params_file), values)
    check_params(params_file, values)
    return text


def difference(before: str, after: str, name: str = str(PARAMS_FILE)) -> list[str]:
    """The lines of the unified diff of two texts."""
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=2, lineterm=""))


def changes_training(before: str, after: str) -> bool:
    """True if two texts of params.yaml differ in a section that describes a model."""
    old, new = read_yaml(before), read_yaml(after)
    return any(
        isinstance(section, dict) and isinstance(section.get("model"), dict) and old.get(name) != section
        for name, section in new.items()
    )


def answer(module: str, text: str, *arguments: str) -> str:
    """Run a program of a stage on a text of params.yaml, with further arguments, and return its output.

    Raises UserError with its message if it fails, for example because a model cannot be built.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        line = [sys.executable, "-m", module, file.name, *arguments]
        done = subprocess.run(line, check=False, capture_output=True, text=True)
    if done.returncode:
        message = done.stderr.strip().rpartition("error: ")[2] or f"{module} exited with {done.returncode}"
        raise UserError(f"{message}; {PARAMS_FILE} was not changed")
    return done.stdout


def option(word: str) -> list[str]:
    """The dial's option for `compute=20` (TFLOP) or a time (90s, 10min, 1.5h). Raises UserError for other words."""
    match = re.fullmatch(rf"{COMPUTE_WORD}=(\d+\.?\d*(?:e[+-]?\d+)?)({'|'.join(SECONDS_PER_UNIT)})?", word)
    if not match or not 0 < float(match[1]) < 1e12:
        example = (
            f"TFLOP, such as {COMPUTE_WORD}=20, or a time, such as {COMPUTE_WORD}=10min ({', '.join(SECONDS_PER_UNIT)})"
        )
        raise UserError(f"{word}: expected {example}")
    if match[2]:
        return ["--seconds", str(float(match[1]) * SECONDS_PER_UNIT[match[2]])]
    return ["--tflop", match[1]]
