"""What is recorded of each stage's code, and that an upgrade or an edit changes the stages that use it alone."""

import re
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml

from stages.runtime.code import CodeFiles
from stages.runtime.errors import UserError
from stages.runtime.stage_code import (
    OTHER_NAMES,
    StageCode,
    code_in,
    code_of,
    code_path,
    computing_sha256,
    normalized,
    pinned,
    require_locked,
    stage_codes,
    stage_modules,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("line", ["numpy>=2", "uvicorn[standard]==0.40.0", "toy @ https://host/toy.whl"])
def test_a_line_of_the_lock_that_pins_nothing_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text(f"# a comment\n-r other.lock\n\nnumpy==2.4.6 \\\n    --hash=sha256:{'0' * 64}\n{line}\n")

    with pytest.raises(UserError, match=re.escape(f"requirements.lock: `{line}`: write NAME==VERSION")):
        pinned(path)


def test_a_pin_has_its_hashes_on_its_line_or_as_pip_continues_it(tmp_path: Path) -> None:
    one, two, path = f"--hash=sha256:{'1' * 64}", f"--hash=sha256:{'2' * 64}", tmp_path / "requirements.lock"
    path.write_text(
        f"a==1.0 ; python_version > '3' {one} {two}\nb==2+cpu \\\n    {one} \\\n    {two}\n"
        f"c==3 ; python_version < '3' {one}\n"
    )

    assert pinned(path) == {"a": ("a", "1.0"), "b": ("b", "2"), "c": ("c", "3")}
    with_hashes = pinned(path, here=True, hashes=True).values()
    assert [(name, version.split()) for name, version in with_hashes] == [
        ("a", ["1.0", one, two]),
        ("b", ["2", one, two]),
    ]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two stages, one in the other's package, and what both import."""
    files = {
        "stages/toy/__main__.py": "import numpy.linalg\nfrom stages.formats import table\n",
        "stages/toy/deep/__main__.py": "import stages.runtime.workers\nrequire_locked('sacrebleu')\n",
        "stages/toy/commands/look.py": "import scipy\n",
        "stages/formats/table.py": "import pydantic, yaml, ruamel.yaml, sklearn, os\n",
        "stages/runtime/workers.py": "import ray\n",
        "stages/code/__main__.py": "import rich\n",
        "requirements.lock": "numpy==2.4.6\nray==2.60.0\nsacreBLEU==2.6.0\nscikit-learn==1.9.1+cpu\npydantic==2.14.3\n"
        "PyYAML==6.0.3\nruamel.yaml==0.19.1\nscipy==1.17.1\nrich==15.0.0\n",
        "params.yaml": "deep: {sources: [{kind: packages, names: [rich, pydantic]}, {kind: files, names: [scipy]}]}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_each_package_that_can_be_run_is_a_stage_but_the_one_that_records_them(project: Path) -> None:
    assert stage_modules(project) == ["stages.toy", "stages.toy.deep"]
    assert list(stage_codes(project)) == [Path("data/code/toy.json"), Path("data/code/toy.deep.json")]


def test_the_libraries_are_those_that_the_code_imports_or_names_as_they_are_locked(project: Path) -> None:
    # Without what only reads parameters (pydantic and two of YAML), what runs the stage (ray), and what is not locked.
    assert code_of("stages.toy", project).libraries == {"numpy": "2.4.6", "scikit-learn": "1.9.1"}


def test_one_more_package_in_the_corpus_leaves_the_shards_of_the_others(project: Path) -> None:
    before = computing_sha256("stages.toy.deep", project), code_of("stages.toy.deep", project)
    (project / "params.yaml").write_text("deep: {sources: [{kind: packages, names: [rich, pydantic, scipy]}]}\n")
    computing_sha256.cache_clear()

    assert computing_sha256("stages.toy.deep", project) == before[0]
    assert before[1].changes_to(code_of("stages.toy.deep", project)) == ["scipy nothing → 1.17.1"]


def test_a_library_that_is_named_and_a_package_that_is_the_corpus_count_too(project: Path) -> None:
    assert code_of("stages.toy.deep", project).libraries == {
        "sacreBLEU": "2.6.0",
        "pydantic": "2.14.3",
        "rich": "15.0.0",
    }


def test_a_library_whose_module_has_another_name_counts_if_it_is_installed_and_pinned(project: Path) -> None:
    (project / "stages/formats/table.py").write_text("from dateutil.parser import parse\n")
    with pytest.raises(UserError, match=r"import `dateutil`, but .* \(installed: python-dateutil\)"):
        code_of("stages.toy", project)

    with (project / "requirements.lock").open("a") as lock:
        lock.write("python-dateutil==2.9.0\n")

    assert code_of("stages.toy", project).libraries == {"numpy": "2.4.6", "python-dateutil": "2.9.0"}


def test_an_import_of_no_library_is_refused(project: Path) -> None:
    (project / "stages/formats/table.py").write_text("import mine\n")

    with pytest.raises(UserError, match=r"import `mine`, .* \(installed: none\).*belong below stages/"):
        code_of("stages.toy", project)


def test_the_changes_between_two_versions_are_named(project: Path) -> None:
    before = code_of("stages.toy", project)
    (project / "stages/toy/__main__.py").write_text("import scipy\nimport stages.toy.more\n")
    (project / "stages/toy/more.py").write_text("import numpy\n")
    lock = project / "requirements.lock"
    lock.write_text(lock.read_text().replace("2.4.6", "2.5.0"))

    assert before.changes_to(before) == []
    assert before.changes_to(code_of("stages.toy", project)) == [
        "stages/formats/table.py is not used any more",
        "stages/toy/__main__.py modified",
        "stages/toy/more.py is new",
        "numpy 2.4.6 → 2.5.0",
        "scikit-learn 1.9.1 → nothing",
        "scipy nothing → 1.17.1",
    ]


def test_a_file_reads_as_it_was_written_and_a_damaged_one_as_none(tmp_path: Path) -> None:
    file = tmp_path / "toy.json"
    code = StageCode({"stages/toy/__main__.py": "0" * 32}, {"numpy": "2.4.6"}, "1" * 64)

    assert code_in(file) is None
    file.write_text(code.text)
    assert code_in(file) == code
    for damaged in ("", "{}", "[1]"):
        file.write_text(damaged)
        assert code_in(file) is None


def test_every_library_that_a_stage_imports_is_known_by_its_name_in_the_lock() -> None:
    sources, installed = CodeFiles(ROOT), packages_distributions()
    files = {file for module in stage_modules(ROOT) for file in sources.closure_of(module)}
    for name in sources.libraries(files) & installed.keys():
        assert normalized(OTHER_NAMES.get(name, name)) in map(normalized, installed[name]), name


def test_the_stages_of_dvc_yaml_depend_on_their_code() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    modules = {name: stage["cmd"].removeprefix("python -m ") for name, stage in stages.items()}

    assert modules.pop("code") == "stages.code"
    assert set(modules.values()) <= {*stage_modules(ROOT)}
    for name, module in modules.items():
        read = [dep for dep in stages[name]["deps"] if dep.startswith("data/code/")]
        assert read == [code_path(module).as_posix()]


def locked(folder: Path, **versions: str) -> Path:
    path = folder / "requirements.lock"
    path.write_text("".join(f"{name}=={value}\n" for name, value in versions.items()))
    return path


def test_a_library_in_another_version_than_the_locked_one_is_refused_but_for_its_build(tmp_path: Path) -> None:
    release = version("torch").split("+")[0]
    require_locked("torch", "numpy", lock_file=locked(tmp_path, torch=f"{release}+cu130", numpy=version("numpy")))

    with pytest.raises(UserError, match=r"numpy: .*requirements\.lock says 0\.1\.0, found \d"):
        require_locked("numpy", lock_file=locked(tmp_path, numpy="0.1.0"))
    with pytest.raises(UserError, match="found not installed"):
        require_locked("no-such-library", lock_file=locked(tmp_path, **{"no-such-library": "0.1.0"}))
    with pytest.raises(UserError, match=r"pandas: not in .*requirements\.lock, so an upgrade would go unnoticed"):
        require_locked("pandas", lock_file=locked(tmp_path))


@pytest.mark.parametrize(
    ("file", "text", "changes"),
    [
        ("stages/formats/table.py", "X = 1\n", True),
        ("requirements.lock", "numpy==99\nscikit-learn==1.9.1\npydantic==2\nPyYAML==6\nruamel.yaml==0.19\n", True),
        ("stages/toy/commands/look.py", "X = 1\n", False),
        ("stages/toy/__main__.py", "# as before\nimport numpy.linalg\nfrom stages.formats import table\n", False),
        ("stages/runtime/errors.py", "X = 1\n", False),
    ],
)
def test_results_are_kept_by_the_code_of_their_stage_without_what_runs_it(
    project: Path, file: str, text: str, changes: bool
) -> None:
    (project / "stages/toy/__main__.py").write_text("import numpy.linalg\nfrom stages.formats import table\n")
    before = computing_sha256("stages.toy.one.two", project)
    assert before == computing_sha256("stages.toy", project) != computing_sha256("stages.toy.deep.one", project)
    (project / file).write_text(text)
    computing_sha256.cache_clear()

    assert (computing_sha256("stages.toy", project) != before) is changes
    assert computing_sha256("tests.toy", project) == ""
    with pytest.raises(ValueError, match=r"^stages\.formats\.shared: belongs to no stage"):
        computing_sha256("stages.formats.shared", project)


@pytest.mark.parametrize(
    ("file", "changes"),
    [("stages/toy/__main__.py", False), ("stages/toy/compute/step.py", True), ("stages/formats/table.py", True)],
)
def test_of_a_stage_with_a_package_of_what_computes_only_that_counts(project: Path, file: str, changes: bool) -> None:
    (project / "stages/toy/compute").mkdir()
    (project / "stages/toy/compute/step.py").write_text("import numpy\nfrom stages.formats import table\n")
    (project / "stages/toy/__main__.py").write_text("import scipy\nimport stages.toy.compute.step\n")
    before = code_of("stages.toy", project)
    with (project / file).open("a") as edited:
        edited.write("X = 1\n")

    after = code_of("stages.toy", project)
    assert (after.computing_sha256 != before.computing_sha256) is changes
    assert before.changes_to(after) == [f"{file} modified"]
