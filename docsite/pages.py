"""The reference pages of the site that are made from the code, each a function that gives Markdown."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from docsite.commands import command_line
from docsite.experiments import experiments
from docsite.schema_tables import one_line, tables
from flows.environment import OF_LIBRARIES, VARIABLES
from flows.plan.settings import Policy, section_models
from stages.runtime.section import read_params_file

ROOT = Path(__file__).parents[1]

_COMMENT = re.compile(
    r"^(?P<indent> *)(?P<key>[\w.]+):"
    r"(?:'[^']*'|\"[^\"]*\"|[^#'\"])*?"  # a value, with the quotes in which `#` begins no comment
    r"(?:\s#\s(?P<comment>.*))?$"
)


def parameters() -> str:
    """Every parameter: its type and bounds from the models, its value and its comment from params.yaml."""
    values = read_params_file(ROOT / "params.yaml")
    notes = comments((ROOT / "params.yaml").read_text(encoding="utf-8"))
    models = section_models(ROOT)
    lines = [
        "# Parameters",
        "",
        "What is computed: every key of [params.yaml](../../params.yaml), a section for each stage. A stage depends on "
        "its own section alone. An unknown key or a value out of range is refused before anything runs. "
        "`parrotflow params KEY=VALUE` and `dvc exp run -S KEY=VALUE` change them.",
        "",
    ]
    for name in values:
        lines += tables(name, models[name], values[name], notes)
    return "\n".join(lines)


def comments(text: str) -> dict[str, str]:
    """The comments at the ends of lines of a YAML file, by dotted key."""
    path: list[tuple[int, str]] = []
    found = {}
    for match in map(_COMMENT.match, text.splitlines()):
        if match:
            indent = len(match["indent"])
            path = [*(part for part in path if part[0] < indent), (indent, match["key"])]
            if match["comment"]:
                found[".".join(key for _, key in path)] = match["comment"].strip()
    return found


def environment() -> str:
    """Every environment variable, from the table in the code."""
    variables = {**VARIABLES, **OF_LIBRARIES}
    lines = [
        "# Environment variables",
        "",
        "How a run is executed: time, memory, and where it happens. None of them changes what is computed, and a "
        "change reruns nothing. `parrotflow doctor` shows which are set, and names one that is misspelt.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {default} | {meaning} |" for name, (default, meaning) in variables.items()),
    ]
    return "\n".join(lines)


def exit_codes() -> str:
    """Every exit code, from the constants in the code and what they say of themselves."""
    rows = {0: "All is well.", 1: "Another failure; of `table --check`, `sweep --check` and `reproduce`: a difference."}
    tree = ast.parse((ROOT / "stages/runtime/entry.py").read_text(encoding="utf-8"))
    for name, value, meaning in documented_constants(tree):
        if name.startswith("EXIT_"):
            rows[int(value)] = one_line(meaning)
    lines = [
        "# Exit codes",
        "",
        "How a command or a stage ended. `parrotflow run` retries a stage that ended with 69, 75 or 143, as often as "
        "[`meta.flow`](meta-flow.md) says, and no other.",
        "",
        "| code | meaning |",
        "|--:|---|",
        *(f"| {code} | {meaning} |" for code, meaning in sorted(rows.items())),
    ]
    return "\n".join(lines)


def documented_constants(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Name, value and docstring of each constant of a module that has a docstring."""
    for line, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(line, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield ast.unparse(line.targets[0]), ast.unparse(line.value), str(after.value.value)


def meta_flow() -> str:
    """Every key of a stage's `meta.flow`, from its model."""
    lines = [
        "# `meta.flow` of a stage",
        "",
        "How a stage is run and what is shown of it, in [dvc.yaml](../../dvc.yaml) under `meta: {flow: ...}` of the "
        "stage. It is not part of a stage's hash: a change reruns nothing. An unknown key is refused.",
        "",
        *tables("meta.flow", Policy, None, {}),
    ]
    return "\n".join(lines)


def formats() -> str:
    """What passes between stages, from the modules that read and write it."""
    lines = [
        "# Formats",
        "",
        "What one stage writes and another reads, and what a published revision holds: a module of "
        "[stages/formats](../../stages/formats/) each, which owns its paths and names.",
        "",
    ]
    for path in sorted((ROOT / "stages/formats").rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if text:
            name = path.relative_to(ROOT / "stages/formats").with_suffix("").as_posix()
            lines += [f"## {name}", "", *in_fences(text), ""]
    return "\n".join(lines)


def in_fences(text: str) -> list[str]:
    """A docstring as Markdown: blocks that are laid out in columns keep their layout."""
    lines: list[str] = []
    for block in re.split(r"\n\n+", text):
        first = block.splitlines()[0]
        laid_out = first.startswith("    ") or any(re.search(r"\S {3,}\S", line) for line in block.splitlines())
        lines += ["```text", *block.splitlines(), "```", ""] if laid_out else [*block.splitlines(), ""]
    return lines


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/parameters.md": parameters,
    "reference/commands.md": command_line,
    "reference/environment-variables.md": environment,
    "reference/exit-codes.md": exit_codes,
    "reference/meta-flow.md": meta_flow,
    "reference/formats.md": formats,
    "reference/experiments.md": experiments,
}
"""Path in the site -> what makes it."""
