"""Which package may import which, and that dvc.yaml says what the code does."""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo
from packaging.requirements import Requirement

from stages.runtime.code import RUNTIME, CodeFiles, computing
from stages.runtime.preflight import section_models
from stages.runtime.section import read_params_file
from stages.runtime.stage_code import normalized, pinned, stage_codes

ROOT = Path(__file__).parents[1]
DVC_STAGES: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
STAGES = tuple(DVC_STAGES)
WITH_PARAMS = tuple(stage for stage in STAGES if stage not in ("code", "corpus_page", "yardstick"))
PACKAGES = sorted(path.name for path in (ROOT / "stages").iterdir() if (path / "__main__.py").exists())
"""Of stages. One may hold several: that of evaluate holds generate too."""

SHARED_BY_ALL = (
    "__init__",
    "runtime/atomic",
    "runtime/code",
    "runtime/credentials",
    "runtime/errors",
    "runtime/preflight",
    "runtime/section",
    "runtime/stage",
    "runtime/stage_code",
)
"""Whole files, clear failures, code, inputs, versions: what no stage can do without."""

PIN = re.compile(r"[\w.-]+==[\w.+!-]+( ; [\w .'\"()<>=!]+)?( --hash=sha256:[0-9a-f]{64})+")
"""A line of a lock: the files of one library's version, perhaps on some platforms only."""

TRAINING_NODE = {
    "torch",
    "transformers",
    "accelerate",
    "numpy",
    "safetensors",
    "pydantic",
    "yaml",
    "ruamel",
    "huggingface_hub",
    "httpx2",
    "packaging",
}
"""What a training node has installed, and nothing more is needed there."""

TRACKERS = {"wandb", "tensorboard", "trackio", "mlflow", "fsspec"}
"""Imported where params or the environment ask for them, inside functions."""


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes: Iterator[ast.AST] = iter(tree.body) if top_level_only else ast.walk(tree)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("package", [*PACKAGES, "formats", "runtime"])
def test_a_package_of_stages_imports_itself_the_formats_and_the_runtime_only(package: str) -> None:
    """And the formats no stage, and the runtime no format."""
    allowed = ("stages.runtime", "stages.formats")[: 1 if package == "runtime" else 2]
    for path in modules(f"stages/{package}"):
        for name in imports(path):
            if name.startswith(("stages", "flows")):
                assert name.startswith((f"stages.{package}", *allowed)), f"{path} imports {name}"


ASKS_FOR_DEVICES = {"launch"}
"""Counts devices and threads, and starts workers. What a run had of these is in its record."""


def test_nothing_in_the_runtime_computes_since_hashes_of_code_leave_it_out() -> None:
    libraries = {"torch", "transformers", "accelerate", "numpy", "safetensors", "tokenizers", "pyarrow"}
    allowed = {ROOT / RUNTIME / f"{name}.py" for name in ASKS_FOR_DEVICES}
    found = {path for path in modules(RUNTIME) if libraries & {name.split(".")[0] for name in imports(path)}}

    assert found == allowed


SHARED_WITH_COMPUTE = {"architecture", "model_folder", "tokens"}
"""The formats that a training computes with."""


def test_what_a_training_computes_with_knows_nothing_of_how_it_is_launched_saved_and_reported() -> None:
    """By the hash of that package a training continues: a clearer message elsewhere must not start it afresh."""
    computes = computing(CodeFiles().closure_of("stages.train.compute."))
    own = {path.relative_to(ROOT).as_posix() for path in modules("stages/train/compute")}

    shared = {"stages/__init__.py"} | {f"stages/formats/{name}.py" for name in SHARED_WITH_COMPUTE}
    assert set(computes) - own == shared
    assert own <= set(computes), "each of its modules is used"


def test_flows_know_of_a_stage_only_its_params() -> None:
    for path in modules("flows"):
        for name in imports(path):
            if name.startswith("stages."):
                assert name.startswith(("stages.formats", "stages.runtime")) or name.endswith(".params"), (
                    f"{path} imports {name}"
                )


def test_a_training_node_needs_only_the_light_libraries() -> None:
    allowed = TRAINING_NODE | {"stages"} | set(sys.stdlib_module_names)
    for name in CodeFiles().closure_of("stages.train"):
        path = ROOT / name
        assert {found.split(".")[0] for found in imports(path, top_level_only=True)} <= allowed, path
        assert {found.split(".")[0] for found in imports(path)} <= allowed | TRACKERS, path


def test_only_what_every_stage_needs_is_code_of_every_stage() -> None:
    shared = set.intersection(*(set(code.files) for code in stage_codes(ROOT).values()))

    assert shared == {f"stages/{name}.py" for name in SHARED_BY_ALL}


def test_dvc_yaml_reads_as_a_table_of_contents() -> None:
    assert len((ROOT / "dvc.yaml").read_text(encoding="utf-8").splitlines()) <= 250


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "publish"])
def test_dvc_keeps_the_results_of_every_stage_but_publish_to_restore_them_elsewhere(stage: str) -> None:
    with Repo() as repo:
        (found,) = repo.stage.collect(stage)

        lost = [str(out) for out in found.outs if out.persist or not (out.use_cache or out.is_metric or out.is_plot)]
        assert lost == [], "cache it, or declare it a metric or a plot"
        assert found.deps


def test_every_parameter_is_a_field_with_a_description_and_its_default_is_in_params_yaml_alone() -> None:
    values, models = read_params_file(ROOT / "params.yaml"), section_models(ROOT)

    assert set(values) == set(models) == {*WITH_PARAMS, "monitoring"}
    for stage, model in models.items():
        assert set(values[stage]) == set(model.model_fields)
        for name, field in model.model_fields.items():
            assert field.is_required(), f"{stage}.{name}"
            assert field.description, f"{stage}.{name}"


def test_no_stage_depends_on_how_a_training_is_followed() -> None:
    with Repo() as repo:
        deps = [dep for stage in repo.index.stages for dep in stage.deps if isinstance(dep, ParamsDependency)]

    assert "train" in {key for dep in deps for key in dep.params}
    assert not [key for dep in deps for key in dep.params if key.startswith("monitoring")]


@pytest.mark.parametrize(
    "lock", ["requirements.lock", "requirements-dev.lock", "requirements-gpu.lock", "deploy/uv.txt"]
)
def test_a_lock_pins_files_by_their_hashes_and_carries_no_addresses(lock: str) -> None:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if not PIN.fullmatch(line)] == []


def test_both_builds_of_torch_are_locked() -> None:
    _, torch = pinned(hashes=True)["torch"]
    on_a_processor_alone = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"

    assert torch.startswith("2.13.0 ")
    assert on_a_processor_alone in torch
    assert torch.count("sha256") > 20
    assert not set(pinned(Path("requirements-gpu.lock"))) & set(pinned())


def test_each_lock_pins_the_libraries_that_pyproject_names_for_it_and_no_other_groups() -> None:
    named = libraries_by_group()
    run, development = pinned(), pinned(Path("requirements-dev.lock"))

    assert named["run"] <= set(run)
    assert set().union(*named.values()) <= set(run) | set(development)
    assert not set(run) & set(development)
    assert len(named["run"]) <= 36


def libraries_by_group() -> dict[str, set[str]]:
    """The libraries that pyproject.toml names: `run` for all users, each extra, each group (PEP 735)."""
    values = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, groups = values.get("project", {}), values.get("dependency-groups", {})
    lists = {"run": project.get("dependencies", []), **project.get("optional-dependencies", {}), **groups}
    return {name: {normalized(Requirement(entry).name) for entry in entries} for name, entries in lists.items()}


def test_every_module_has_a_name_that_says_what_is_in_it() -> None:
    nameless = {"utils", "util", "helpers", "helper", "common", "misc"}

    for package in ("flows", "stages", "tests", "benchmarks"):
        assert not nameless & {path.stem for path in (ROOT / package).rglob("*") if "__pycache__" not in path.parts}


SHARED_NAMES = {"main"}
"""Names that every program has."""


def test_each_public_name_has_one_meaning() -> None:
    owners: dict[str, list[str]] = {}
    for path in sorted(path for package in ("flows", "stages") for path in (ROOT / package).rglob("*.py")):
        for name in set(public_names(ast.parse(path.read_text(encoding="utf-8")))) - SHARED_NAMES:
            owners.setdefault(name, []).append(path.relative_to(ROOT).as_posix())

    assert {name: paths for name, paths in owners.items() if len(paths) > 1} == {}


def public_names(module: ast.Module) -> Iterator[str]:
    """The functions, classes and constants that a module defines."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        yield from (name for name in names if not name.startswith("_"))


LONGEST_CHAIN = 6


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported_by(path: Path, known: set[str]) -> set[str]:
    """The known modules that a module imports when it runs, also inside functions; not those for annotations."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_annotations = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in for_annotations:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & known


def test_no_files_import_each_other_in_a_circle() -> None:
    """Not even inside functions. Imports for annotations alone are left out: Python never follows them."""
    files = [path for package in ("flows", "stages", "benchmarks") for path in modules(package)]
    paths = {name_of(path): path for path in files}
    graph = {name: imported_by(path, set(paths)) for name, path in paths.items()}

    assert list(TopologicalSorter(graph).static_order())


def test_no_chain_of_imports_in_flows_is_longer_than_six_modules() -> None:
    paths = {name_of(path): path for path in modules("flows")}
    graph = {name: imported_by(path, set(paths)) for name, path in paths.items()}

    def chain(name: str) -> list[str]:
        return [*max((chain(below) for below in graph[name]), key=len, default=[]), name]

    longest = max((chain(name) for name in paths), key=len)
    assert len(longest) <= LONGEST_CHAIN, " <- ".join(longest)


LEVELS = (
    {"flows.dvc_repo"},
    {"flows.plan"},
    {"flows.project", "flows.run", "flows.reproduce", "flows.experiments", "flows.results"},
    {"flows.pipeline", "flows.scheduled", "flows.checkout", "flows.sweep"},
    {"flows.commands"},
    {"flows.cli"},
)
"""The packages of flows/. Each imports only from its own level or those before it."""

FOR_EVERY_LEVEL = {"flows.environment"}

MAX_FILES = 13


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_packages_of_flows_import_only_from_their_own_level_or_below() -> None:
    level = {name: number for number, names in enumerate(LEVELS) for name in names}
    for path in modules("flows"):
        here = package_of(name_of(path))
        if here in FOR_EVERY_LEVEL or here == "flows.__init__":
            continue
        for name in imports(path):
            if name.startswith("flows.") and package_of(name) not in FOR_EVERY_LEVEL:
                assert level[package_of(name)] <= level[here], f"{path} imports {name}"


def test_no_packages_of_flows_import_each_other_in_a_circle() -> None:
    paths = {name_of(path): path for path in modules("flows")}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        below = {package_of(other) for other in imported_by(path, set(paths))}
        graph.setdefault(package_of(name), set()).update(below - {package_of(name)})

    assert list(TopologicalSorter(graph).static_order())


WITH_FEW_LINES = {
    "stages/evaluate/harness/check.py": "is a program of its own, which rarely imports lm-eval",
    "stages/evaluate/likelihood/check.py": "is a program of its own, which rarely imports torch",
    "stages/evaluate/libraries.py": "is imported first, for its effect",
}
"""Modules under 25 lines, with the reason. The parameters of a stage and its story have files of their own anyway."""


def test_no_other_module_has_few_lines() -> None:
    own = ("__init__.py", "__main__.py", "params.py")
    paths = [path for package in ("flows", "stages") for path in modules(package) if path.name not in own]

    assert {path.relative_to(ROOT).as_posix() for path in paths if lines_of(path) < 25} == set(WITH_FEW_LINES)


def test_a_package_has_an_init_only_where_its_import_runs_something() -> None:
    for package in ("flows", "stages", "tests", "benchmarks", "docs/_build"):
        assert [path for path in modules(package) if path.name == "__init__.py" and meaningful(path) == "pass"] == []


def lines_of(path: Path) -> int:
    """Those that are not empty."""
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("package", ["flows", "stages"])
def test_a_package_has_at_most_thirteen_modules(package: str) -> None:
    counts = Counter(path.parent for path in modules(package) if path.name != "__init__.py")

    assert {path for path, count in counts.items() if count > MAX_FILES} == set()


def test_every_library_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.match(r"[\w.-]+", entry)[0] for entry in project["dependencies"]}  # type: ignore[index]
    distributions = packages_distributions()
    found = {
        name.split(".")[0] for package in ("flows", "stages") for path in modules(package) for name in imports(path)
    }
    needed = found - {"flows", "stages", "ray", "trackio"} - set(sys.stdlib_module_names)

    normal = {normalized(name) for name in declared}
    assert {name for name in needed if not normal & {normalized(of) for of in distributions.get(name, [name])}} == set()


def strings(path: Path) -> Iterator[str]:
    """The texts of a module that are not docstrings."""
    tree = ast.parse(meaningful(path))
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_remark(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def meaningful(path: Path) -> str:
    """A module's code without remarks."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [line for line in node.body if not is_remark(line)] or [ast.Pass()]
    return ast.unparse(tree)


def test_flows_name_of_a_stage_only_its_commands() -> None:
    # Also what a stage is that is up to date, and what a reason is.
    names = {name for name in DVC_STAGES if name not in ("clean", "code")}
    files = re.compile(rf"(data|reports|model)/|stages\.({'|'.join(DVC_STAGES)})(?!\.commands\.)")
    for path in modules("flows"):
        for text in strings(path):
            assert text not in names, f"{path}: {text}"
            assert not files.match(text), f"{path}: {text}"


def test_only_one_file_uses_private_names_of_dvc() -> None:
    private = re.compile(r"from dvc[\w.]* import .*\b_\w|\b(repo|stage|out|dep)\b[\w.]*\._[a-z]|Repo\(_")
    for path in modules("flows"):
        if path != ROOT / "flows/dvc_repo.py":
            assert not private.search(meaningful(path)), path


def test_each_path_between_stages_is_written_in_one_file() -> None:
    owners: dict[str, set[str]] = {}
    for path in modules("stages"):
        for text in strings(path):
            if re.fullmatch(r"(data|reports)/[\w./-]+", text):
                owners.setdefault(text, set()).add(path.relative_to(ROOT).as_posix())

    assert {text: files for text, files in owners.items() if len(files) > 1} == {}
    between = {dep for stage in DVC_STAGES.values() for dep in stage["deps"] if dep.startswith("data/")}
    assert all(file.startswith("stages/formats/") for text in between & owners.keys() for file in owners[text])


def test_relative_imports_are_not_used() -> None:
    for package in ("flows", "stages", "benchmarks", "tests"):
        for path in modules(package):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)), path


def test_no_package_of_flows_hides_a_library() -> None:
    # Prefect loads `flows/scheduled.py` as a script, so that flows/ itself comes first on the import path.
    names = {path.stem for path in (ROOT / "flows").iterdir() if path.stem != "__pycache__"}

    assert not names & {name for path in modules("flows") for found in imports(path) for name in [found.split(".")[0]]}


def test_every_command_that_runs_a_model_lets_its_threads_sleep_while_they_wait() -> None:
    """Training's launcher sets it for the workers; here the first import does, before torch reads it."""
    commands = [*(ROOT / "stages/evaluate").rglob("__main__.py"), *(ROOT / "stages/evaluate/commands").glob("[!_]*.py")]
    running = [path for path in commands if "stages/evaluate/model.py" in CodeFiles(ROOT).closure_of(module_of(path))]
    assert {path.parent.name for path in running} >= {"evaluate", "generate", "commands"}
    for path in running:
        imports = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert ast.unparse(imports[0]) == "import stages.evaluate.libraries", path


def module_of(path: Path) -> str:
    """The module that `python -m` runs for a file."""
    return name_of(path).removesuffix(".__main__")
