"""A corpus that goes to the token store part by part has the bytes of one that went there at once."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.runs.faults import can_mount
from stages.formats.parts import bits_of_parts
from stages.formats.tokens import TOKENS, TokenStore
from stages.in_parts.__main__ import summed
from stages.runtime.entry import EXIT_DISK_FULL, EXIT_INPUTS_CHANGED, EXIT_USER_ERROR, UserError
from tests.flows.small_pipeline import environment, make_pipeline, outs, repro
from tests.flows.small_pipeline import run as run_in_pipeline
from tests.forked import PARROTFLOW, run_forked
from tests.small_project import (
    DATA_STAGES,
    FILES_SOURCE,
    ROOT,
    SECTIONS,
    folder_bytes,
    write_corpus,
    write_params,
    write_project,
)
from tests.versioned_server import Server

LEFT_TO_THE_PARTS = ("documents/", "clean/train/", "clean/preview", "clean/report", "clean/contaminated.csv")
LEFT_TO_THE_PARTS += ("clean/duplicates.csv", "clean/evaluation_items.csv")
"""What is deleted with a part."""

FILES, LINES = 240, 1400
"""Of a corpus of 25 MB."""

DISK_BYTES = 8_000_000

SETTINGS: dict[str, Any] = {
    "tokenizer__training_bytes": 2000,
    "clean__masks": {"emails": True, "ip_addresses": False, "keys": False},
}


def stage(folder: Path, *command: str, **variables: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PARROTFLOW_WORKERS": "1"} | variables
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run(folder: Path, *command: str, **variables: str) -> str:
    process = stage(folder, *command, **variables)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def at_once(folder: Path) -> dict[str, bytes]:
    """What the stages write, run one after the other; without what is deleted with a part."""
    for name in DATA_STAGES:
        run(folder, f"stages.{name}")
    files = folder_bytes(folder / "data")
    kept = {name: content for name, content in files.items() if not name.startswith(LEFT_TO_THE_PARTS)}
    return kept | reports(folder)


def in_parts(folder: Path) -> dict[str, bytes]:
    return folder_bytes(folder / "data") | reports(folder)


def reports(folder: Path) -> dict[str, bytes]:
    return {name: (folder / "reports" / f"{name}.json").read_bytes() for name in DATA_STAGES}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Forty documents in shards of a tenth of a part or less; the tokenizer is trained on less text than a part has."""
    folder = tmp_path / "project"
    folder.mkdir()
    write_corpus(folder, 40)
    (folder / "corpus/mail.py").write_text("write_to = 'jane@mail.org'\n" * 20)  # masked, so its id changes
    write_project(folder, **SETTINGS)
    return folder


def test_parts_give_the_bytes_of_the_whole_and_an_edit_encodes_its_part_alone(project: Path) -> None:
    expected = at_once(project)
    shutil.rmtree(project / "data")
    (project / "data").mkdir()
    (project / "data/corpus.html").write_text("of the stages before")

    first = run(project, "stages.in_parts", "4")
    found = in_parts(project)

    assert found.keys() == expected.keys()
    assert found == expected
    assert first.count("kept ") == 4
    TokenStore(project / "data/tokens/train").verify()

    text = project / "corpus/module_007.py"
    text.write_text(text.read_text() + "# edited\n")
    second = run(project, "stages.in_parts", "4")
    found = in_parts(project)

    assert 1 <= second.count("kept ") <= 2  # the part that the document leaves, and the one where it is now
    assert found == at_once(project)


@pytest.mark.parametrize("whole_group", [True, False])
def test_killed_in_the_middle_the_same_command_gives_the_same_bytes(project: Path, whole_group: bool) -> None:
    expected = at_once(project)
    shutil.rmtree(project / "data")

    process = stage(project, "stages.in_parts", "4")
    assert process.stdout is not None
    lines: Iterator[str] = iter(process.stdout)
    assert any(line.startswith("part 3 of 4") for line in lines)
    assert any(line.startswith("collected") for line in lines)  # so it cleans or encodes
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
    process.wait()
    again = run(project, "stages.in_parts", "4")

    assert in_parts(project) == expected
    assert again.count("kept ") <= 2, "the parts that had ended were computed again"


def test_a_part_that_was_cleaned_with_other_parameters_than_the_run_began_with_is_not_kept(project: Path) -> None:
    expected = at_once(project)
    shutil.rmtree(project / "data")

    process = stage(project, "stages.in_parts", "4")
    assert process.stdout is not None
    assert any(line.startswith("part 2 of 4") for line in process.stdout)
    write_project(project, **SETTINGS, clean__filters__line_length_maximum=1)
    output = process.communicate()[0]
    assert process.returncode == EXIT_INPUTS_CHANGED, output
    write_project(project, **SETTINGS)
    run(project, "stages.in_parts", "4")

    assert in_parts(project) == expected


def test_a_source_that_changes_between_two_parts_ends_the_run(project: Path) -> None:
    process = stage(project, "stages.in_parts", "4")
    assert process.stdout is not None
    assert any(line.startswith("part 2 of 4") for line in process.stdout)
    for text in (project / "corpus").glob("*.py"):  # of the same size, and of other parts by now
        text.write_text(text.read_text().replace("value", "other"))
    output = process.communicate()[0]
    assert process.returncode == EXIT_INPUTS_CHANGED, output
    assert "error: in_parts: the sources changed meanwhile" in output

    run(project, "stages.in_parts", "4")

    assert in_parts(project) == at_once(project)


def test_characters_cannot_be_known_part_by_part(project: Path) -> None:
    write_project(project, tokenizer__kind="characters")
    process = stage(project, "stages.in_parts", "4")
    output = process.communicate()[0]

    assert process.returncode == EXIT_USER_ERROR
    assert "error: in_parts: tokenizer.kind = characters" in output
    assert "Traceback" not in output


def test_a_corpus_of_three_times_the_free_disk_passes_in_parts_and_not_at_once(tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("needs the right to mount a file system")
    documents = tmp_path / "documents"
    documents.mkdir()
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=24)) for _ in range(300)]
    for number in range(FILES):
        lines = (" ".join(chance.choices(words, k=3)) for _ in range(LINES))
        (documents / f"{number}.txt").write_text("\n".join(lines) + "\n")
    size = sum(path.stat().st_size for path in documents.iterdir())
    changes = {
        "collect__sources": [FILES_SOURCE | {"globs": [str(documents)]}],
        "collect__shard_bytes": 1_500_000,
        "clean__split__validation_share": 0.05,
        "tokenizer__vocabulary_size": 8000,
        "tokenizer__training_bytes": 1_000_000,
    }
    roomy, small = tmp_path / "roomy", tmp_path / "small"
    roomy.mkdir()
    small.mkdir()
    write_project(roomy, **changes)
    expected = at_once(roomy)

    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "small", str(small)], check=True)
    try:
        write_project(small, **changes)
        assert size >= 3 * shutil.disk_usage(small).free
        without_cache = {"PARROTFLOW_SHARD_CACHE_GB": "0"}
        ended = []
        for name in DATA_STAGES:
            process = stage(small, f"stages.{name}", **without_cache)
            process.communicate()
            ended.append(process.returncode)
            if process.returncode:
                break
        assert ended[-1] == EXIT_DISK_FULL

        shutil.rmtree(small / "data")
        shutil.rmtree(small / ".parrotflow")
        run(small, "stages.in_parts", "8")

        assert in_parts(small) == expected
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_the_parts_are_the_branches_of_one_depth() -> None:
    assert bits_of_parts(4) == ["00", "01", "10", "11"]
    for count in (0, 1, 6, 2**17):
        with pytest.raises(UserError, match="power of two"):
            bits_of_parts(count)


def test_reports_are_added_up_by_name() -> None:
    assert summed([{"a": 1, "b": {"c": 2}}, {"a": 3, "d": {"e": 4}}]) == {"a": 4, "b": {"c": 2}, "d": {"e": 4}}


def use_parts(folder: Path) -> None:
    """Edit dvc.yaml as docs/how-to/data.md says."""
    page = (ROOT / "docs/how-to/data.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(  in_parts:.*?)```", page, re.DOTALL)
    content = yaml.safe_load((folder / "dvc.yaml").read_text())
    for name in (*DATA_STAGES, "corpus_page"):
        del content["stages"][name]
    content["stages"]["publish"]["deps"].remove("data/clean/train")
    content["stages"] |= yaml.safe_load(block.replace("in_parts 8", "in_parts 4"))
    (folder / "dvc.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def test_dvc_and_training_take_parts_as_any_token_store(tmp_path: Path) -> None:
    folder = make_pipeline(tmp_path / "project")
    use_parts(folder)

    assert repro(folder, "evaluate") == ["code", "in_parts", "train", "evaluate"]
    assert repro(folder, "evaluate") == []
    store = TokenStore(folder / TOKENS / "train")
    first = outs(folder)["data/tokens/train"]
    traced = run_in_pipeline([sys.executable, "-m", "stages.train.commands.trace", "--step", "3", "--row", "1"], folder)
    assert any(info["path"] in traced for info in store.document_infos())

    text = folder / "corpus/module_007.py"
    text.write_text(text.read_text() + "# edited\n")
    why = run_forked(PARROTFLOW, ["why", "evaluate"], folder, environment(folder)).stdout
    assert re.search(r"in_parts +run +corpus modified", why), why
    assert repro(folder, "in_parts") == ["in_parts"]
    assert outs(folder)["data/tokens/train"] != first


def test_a_url_that_changes_while_the_last_part_is_cleaned_ends_the_run(tmp_path: Path) -> None:
    """DVC asks for its version only then, and would record the new one with the old text."""
    folder, server = make_pipeline(tmp_path / "project"), Server()
    use_parts(folder)
    url = f"{server.address}/a.txt"
    web = FILES_SOURCE | {"name": "web", "globs": [url]}
    write_params(folder, *SECTIONS, collect__sources=[FILES_SOURCE, web])
    content = yaml.safe_load((folder / "dvc.yaml").read_text())
    content["stages"]["in_parts"]["deps"].append(url)
    (folder / "dvc.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    run_in_pipeline([sys.executable, "-m", "stages.code"], folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        process = stage(folder, "stages.in_parts", "2", **environment(folder))
        assert process.stdout is not None
        lines: Iterator[str] = iter(process.stdout)
        assert any(line.startswith("part 2 of 2") for line in lines)
        assert any(line.startswith("collected") for line in lines)
        server.version = '"2"'
        output = process.communicate()[0]
    finally:
        server.shutdown()

    assert process.returncode == EXIT_INPUTS_CHANGED, output
    assert "error: in_parts: a URL of the sources changed meanwhile" in output
