"""A value in a template is an input of its stage, listed under `params` or not."""

from pathlib import Path

import pytest

from flows.dvc_repo.cache import files_of_templates, reach
from flows.dvc_repo.internals import open_repo
from tests.flows.toy import make_toy

DVC_YAML = """\
vars: [machine.yaml, {own: 1}]
stages:
  one:
    cmd: echo ${ left.rate } ${host.name} ${own} > one.txt
    outs: [one.txt]
    meta: {note: "${left.note}"}
  two:
    cmd: python two.py ${many}
    deps: [one.txt]
    outs: [two.txt]
  three:
    foreach: ${sizes}
    do:
      vars: ["other.yaml:other"]
      cmd: echo ${item} ${other.unit} > ${left.name}-${item}.txt
      outs: ["${left.name}-${item}.txt"]
"""


def test_keys_of_commands_and_paths_and_unpacked_sections_are_read_by_their_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_toy(tmp_path / "toy", DVC_YAML)
    values = "left: {rate: 1, name: a, note: x}\nmany: {a: 1, b: 2}\nsizes: [1, 2]\n"
    for name, text in (("params", values), ("machine", "host: {name: h}\n"), ("other", "other: {unit: s}\n")):
        (folder / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(folder)

    assert reach(["one"]).params == {"left.rate", "host.name", "own"}
    assert reach(["two"]).params == {"left.rate", "host.name", "own", "many"}
    assert reach(["three@2"]).params == {"sizes", "item", "other.unit", "left.name"}
    with open_repo() as repo:
        assert files_of_templates(repo.stage.collect("one")) == {folder / "machine.yaml"}
        assert files_of_templates(repo.stage.collect("three@2")) == {folder / "machine.yaml", folder / "other.yaml"}
