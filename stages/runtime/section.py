"""YAML, the sections of params.yaml and their typed models, and dotted keys.

Values are only in `params.yaml`: models have types, units and bounds, but no defaults.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.runtime.credentials import refuse_credentials, without_credentials
from stages.runtime.errors import EXIT_USER_ERROR, UserError, fail, first_line

PARAMS_FILE = Path("params.yaml")

Location: TypeAlias = tuple[int | str, ...]
"""Keys and indexes from a section to a value in it."""


def read_yaml(text: str | bytes, *, trusted: bool = True) -> Any:
    """Read YAML 1.2 as DVC does: `1e-3` and `010` are numbers, 0.001 and 10, and `yes` is text.

    Text that is not `trusted` is parsed in Python, because deep nesting overflows the stack of the parser in C. Raises
    ruamel.yaml's YAMLError, also for duplicate keys.
    """
    return YAML(typ="safe", pure=not trusted).load(text)


def yaml_fault(error: YAMLError) -> str:
    """Why a text is not valid YAML, and on which line."""
    problem, mark = getattr(error, "problem", None) or first_line(error), getattr(error, "problem_mark", None)
    return f"{f'line {mark.line + 1}: ' if mark else ''}not valid YAML: {without_credentials(problem)}"


def write_yaml(values: Any) -> str:
    """Plain values as YAML in the style of dvc.lock: one per line, in order."""
    yaml, stream = YAML(), StringIO()
    yaml.default_flow_style = False
    yaml.dump(values, stream)
    return stream.getvalue()


class Section(BaseModel):
    """Base of every stage's parameters; refuses unknown keys and values of other types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def check(self, others: Mapping[str, Any]) -> Iterable[str]:
        """Faults, with their keys, that depend on other sections; `others` are all sections, which are valid."""
        return ()


class NamedFile(str):
    """A file or folder in a parameter. A run starts only if it exists and DVC detects its changes."""

    is_dep = True
    """True if dvc.yaml must list it among the deps of the stage."""

    @property
    def path(self) -> Path:
        """The file or folder as a path."""
        return Path(self)


class FixedFile(NamedFile):
    """A file or folder whose name is derived from its content."""

    is_dep = False


FileName: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(NamedFile)]
"""The type of a parameter that names a file or folder."""

PositiveInteger = Annotated[int, Field(ge=1)]


def named_files(key: str, value: object) -> Iterator[tuple[str, NamedFile]]:
    """Yield the files in a section or a part of it, each with the dotted key of its parameter."""
    if isinstance(value, NamedFile):
        yield key, value
    elif isinstance(value, BaseModel | Mapping):
        for name, part in value.items() if isinstance(value, Mapping) else value:
            yield from named_files(f"{key}.{name}", part)
    elif isinstance(value, list):
        for part in value:
            yield from named_files(key, part)


SectionT = TypeVar("SectionT", bound=BaseModel)


def subclasses_in(modules: Iterable[ModuleType], base: type[SectionT]) -> tuple[type[SectionT], ...]:
    """The subclasses of `base` that modules define, in order of definition."""
    members = ((module, member) for module in modules for member in vars(module).values() if isinstance(member, type))
    return tuple(
        member for module, member in members if issubclass(member, base) and member.__module__ == module.__name__
    )


def require_distinct(defined: Iterable[tuple[str, str]], what: str) -> None:
    """Exit with a message if two modules define the same name. `defined`: (module, name); `what`: the kind of name.

    This runs while modules are imported, before anything catches a UserError.
    """
    owners: dict[str, str] = {}
    for module, name in defined:
        if name in owners:
            first, second = (f"{dotted.replace('.', '/')}.py" for dotted in (owners[name], module))
            fail(f"{second}: {first} has a {what} `{name}` already; rename one of them", EXIT_USER_ERROR)
        owners[name] = module


def read_params_file(path: Path = PARAMS_FILE) -> dict[str, Any]:
    """Read params.yaml as plain values.

    Raises UserError if it is missing, not a mapping, or has a duplicate key or a URL with a credential.
    """
    try:
        values = read_yaml(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run this from the project's root") from None
    except YAMLError as error:
        raise UserError(f"{path}: {yaml_fault(error)}") from None
    refuse_credentials(str(path), values)
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a section per stage, found {type(values).__name__}")
    return values


def read_section(name: str, model: type[SectionT], path: Path = PARAMS_FILE) -> SectionT:
    """Read and check section `name`. Raises UserError that lists each bad key, its value and the allowed values."""
    values = read_params_file(path)
    if name not in values:
        raise UserError(f"{path}: section `{name}` is missing")
    return check_section(name, values[name], model, path)


def check_section(name: str, values: object, model: type[SectionT], path: Path = PARAMS_FILE) -> SectionT:
    """Check plain values of a section, or of a whole file if `name` is empty. Raises as `read_section`."""
    refuse_credentials(str(path), {name: values})
    try:
        return model.model_validate_json(json.dumps(values))
    except TypeError as error:  # a date, which JSON does not have
        raise UserError(f"{path}: {f'{name}: ' if name else ''}{error}; quote it") from None
    except ValidationError as error:
        lines: list[dict[str, Any]] = [{**line, "loc": tuple(_keys(line["loc"], values))} for line in error.errors()]
        meant = _misspelled(lines)
        reported = (line for line in lines if line["loc"] not in meant.values())
        raise UserError("\n".join(_describe(name, line, path, meant.get(line["loc"])) for line in reported)) from None


def _misspelled(lines: Iterable[Mapping[str, Any]]) -> dict[Location, Location]:
    """Unknown key -> the missing one in its place that it resembles: a misspelled key is both, and is reported once."""
    missing = [line["loc"] for line in lines if line["type"] == "missing"]
    meant: dict[Location, Location] = {}
    for *place, key in (line["loc"] for line in lines if line["type"] == "extra_forbidden"):
        siblings = [str(loc[-1]) for loc in missing if [*loc[:-1]] == place]
        for near in get_close_matches(str(key), siblings, 1):
            meant[(*place, key)] = (*place, near)
    return meant


def _keys(loc: Location, values: Any) -> Iterator[int | str]:
    """Yield the keys in pydantic's location of an error, without the union tags between them."""
    for number, part in enumerate(loc):
        is_key = (isinstance(values, dict) and part in values) or (isinstance(values, list) and isinstance(part, int))
        if is_key or number == len(loc) - 1:
            yield part
        if is_key:
            values = values[part]


def _describe(name: str, line: Any, path: Path, meant: Location | None) -> str:
    key = ".".join(str(part) for part in (name, *line["loc"]) if part != "")
    place = f"{path}: {key}" if key else str(path)
    what, remedy = "key", ""
    if name:
        what, remedy = "parameter", f"; after an upgrade take it from the new version's {PARAMS_FILE}"
    match line["type"]:
        case "union_tag_invalid":
            kind, given, expected = (line["ctx"][fact] for fact in ("discriminator", "tag", "expected_tags"))
            return f"{place}.{kind[1:-1]} = {given!r}: expected one of {expected}"
        case "union_tag_not_found":
            return f"{place}.{line['ctx']['discriminator'][1:-1]}: missing{remedy}"
        case "string_type" if isinstance(line["input"], bool | int | float):
            return f"{place} = {json.dumps(line['input'])}: expected text, but YAML reads another type: quote it"
        case "extra_forbidden":
            remedy = f"did you mean `{meant[-1]}`?" if meant else "correct its name or remove it"
            return f"{place}: unknown {what} (value {line['input']!r}); {remedy}"
        case "missing":
            return f"{place}: missing{remedy}"
        case _:
            # If the input is a whole section, the message contains the relevant values.
            is_section = isinstance(line["input"], dict) and (line["input"] or line["type"] == "value_error")
            value = "" if is_section else f" = {line['input']!r}"
            return f"{place}{value}: {line['msg'].removeprefix('Value error, ')}"


def as_yaml(value: Any) -> str:
    """A value as written in params.yaml: null, true."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)


def value_at(values: Any, key: str) -> Any:
    """The value at a dotted key or at a name that contains dots; None if there is no such key."""
    if isinstance(values, Mapping) and key in values:
        return values[key]
    for part in key.split("."):
        if not isinstance(values, Mapping):
            return None
        values = values.get(part)
    return values


def differences(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old value, new value) for each leaf that differs. Lists are leaves.

    `key` is the key of `old` and `new` themselves; empty at the top.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys((*old, *new)):
            yield from differences(f"{key}.{name}" if key else str(name), old.get(name), new.get(name))
    elif old != new:
        yield key, old, new


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves by their dotted keys. Lists are leaves."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
