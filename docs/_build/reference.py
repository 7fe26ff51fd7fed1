"""The reference pages of the site that are made from the code, each a function that gives Markdown."""

import ast
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from cyclopts.docs.markdown import generate_markdown_docs

from docs._build.schema_tables import one_line, tables
from flows import cli
from stages.runtime.preflight import section_models
from stages.runtime.section import read_params_file

ROOT = Path(__file__).parents[2]

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


def command_line() -> str:
    """`parrotflow --help` and that of every command."""
    program, sys.argv = sys.argv, ["parrotflow"]  # else the usage lines name the program that runs, mkdocs
    page = generate_markdown_docs(
        cli.app, heading_level=2, flatten_commands=True, no_root_title=True, generate_toc=False
    )
    sys.argv = program
    return f"# Commands\n\n{page}"


OF_THE_PROGRAM = {
    "PARROTFLOW_LAUNCH": (
        "`one_gpu` or `cpu`",
        "how training starts: a preset of `deploy/launch/` or a path to an Accelerate config file",
    ),
    "PARROTFLOW_MICRO_BATCH": (
        "by the hardware",
        "sequences in one forward pass; the rest of the global batch is accumulated",
    ),
    "PARROTFLOW_MIRROR": (
        "none",
        "a second home for the newest checkpoint, from which another machine continues: any fsspec URL, such as "
        "`s3://bucket/runs`, without a password in it",
    ),
    "PARROTFLOW_COMPILE": (
        "`auto`",
        "`torch.compile`: `on`, `off`, or `auto` where the whole run repays its start-up; a run that continues stays "
        "as it was",
    ),
    "PARROTFLOW_PROFILE": ("none", "training steps, such as `10-12`, of which each process writes a trace"),
    "PARROTFLOW_WORKERS": ("all cores", "processes of the data stages; programs that `score` runs at once"),
    "PARROTFLOW_EVALUATE_BATCH": (
        "32,768 tokens on a GPU, 1,024 on a CPU",
        "windows of full length that `evaluate` scores at once",
    ),
    "PARROTFLOW_HARNESS_BATCH": (
        "16 on a GPU, 4 on a CPU",
        "requests of lm-evaluation-harness that the model answers at once",
    ),
    "PARROTFLOW_STAGES_AT_ONCE": ("2", "stages that `parrotflow run` lets run side by side"),
    "PARROTFLOW_SHARD_CACHE_GB": (
        "50",
        "gigabytes of results that `.parrotflow/cache` may keep; stages remove the least recently used",
    ),
    "PARROTFLOW_SIGNING_KEY": ("none", "private key of ssh-keygen that signs published revisions"),
    "PARROTFLOW_TRUSTED_KEY": (
        "none",
        "file of public keys with which `published verify` and `reproduce` check a signature",
    ),
    "PARROTFLOW_SOURCE": (
        "the folder in which the worker runs; for cells of a sweep, its `origin`",
        "the git repository that deployments run",
    ),
    "PARROTFLOW_CHECKOUT": ("`.parrotflow/checkout`", "where deployments keep their checkout"),
}
"""Name -> (default, meaning)."""

OF_LIBRARIES = {
    "OMP_NUM_THREADS": (
        "torch's choice",
        "threads of a process in `train`, `evaluate` and `generate`; another number may change the last bits",
    ),
    "CUDA_VISIBLE_DEVICES": ("all", "GPUs that are used; `-1` for none"),
    "HF_TOKEN": (
        "none",
        "publishing to the Hub, and sources and models that need a login; never written anywhere",
    ),
    "HF_HUB_OFFLINE": ("none", "1: nothing is asked of the Hub"),
    "RAY_ADDRESS": ("none", "a Ray cluster on which the data stages run (`pip install -e '.[cluster]'`)"),
    "PREFECT_API_URL": (
        "none",
        "a Prefect server of yours, which then shows every run; unset, `parrotflow ui` shows them",
    ),
}
"""Variables of libraries that matter here: name -> (default, meaning)."""


def environment() -> str:
    """Every environment variable: those of the program, and those of libraries that matter here."""
    variables = {**OF_THE_PROGRAM, **OF_LIBRARIES}
    lines = [
        "# Environment variables",
        "",
        "How a run is executed: time, memory, and where it happens. None of them changes what is computed, and a "
        "change reruns nothing. `parrotflow doctor` shows which are set, and names one that is misspelled.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {default} | {meaning} |" for name, (default, meaning) in variables.items()),
    ]
    return "\n".join(lines)


def exit_codes() -> str:
    """Every exit code, from the constants in the code and what they say of themselves."""
    rows = {0: "All is well.", 1: "Another failure; of `reproduce`: a difference."}
    tree = ast.parse((ROOT / "stages/runtime/errors.py").read_text(encoding="utf-8"))
    for line, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]).startswith("EXIT_"):
            rows[int(ast.unparse(line.value))] = one_line(ast.literal_eval(ast.unparse(after)))
    lines = [
        "# Exit codes",
        "",
        "How a command or a stage ended. `parrotflow run` retries a stage that ended with 69, 75 or 143, as often as "
        "`meta.flow` of [dvc.yaml](../../dvc.yaml) says, and no other.",
        "",
        "| code | meaning |",
        "|--:|---|",
        *(f"| {code} | {meaning} |" for code, meaning in sorted(rows.items())),
    ]
    return "\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/parameters.md": parameters,
    "reference/commands.md": command_line,
    "reference/environment-variables.md": environment,
    "reference/exit-codes.md": exit_codes,
}
"""Path in the site -> what makes it."""
