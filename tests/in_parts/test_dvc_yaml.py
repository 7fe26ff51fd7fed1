"""The stage of docs/how-to/data.md in the real pipeline: DVC and training take its results as any others."""

import re
import sys
from pathlib import Path

import yaml

from stages.formats.tokens import TOKENS, TokenStore
from tests.flows.small_pipeline import environment, make_pipeline, outs, repro, run
from tests.forked import PARROTFLOW, run_forked
from tests.small_project import ROOT

REPLACED = ("collect", "clean", "tokenizer", "tokenize", "corpus_page")
PARTS = 4


def use_parts(folder: Path) -> None:
    """Edit dvc.yaml as the page says."""
    page = (ROOT / "docs/how-to/data.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(  in_parts:.*?)```", page, re.DOTALL)
    content = yaml.safe_load((folder / "dvc.yaml").read_text())
    for name in REPLACED:
        del content["stages"][name]
    content["stages"]["publish"]["deps"].remove("data/clean/train")
    content["stages"] |= yaml.safe_load(block.replace("in_parts 8", f"in_parts {PARTS}"))
    (folder / "dvc.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def test_dvc_and_training_take_parts_as_any_token_store(tmp_path: Path) -> None:
    folder = make_pipeline(tmp_path / "project")
    use_parts(folder)

    assert repro(folder, "evaluate") == ["code", "in_parts", "train", "evaluate"]
    assert repro(folder, "evaluate") == []
    store = TokenStore(folder / TOKENS / "train")
    first = outs(folder)["data/tokens/train"]
    traced = run([sys.executable, "-m", "stages.train.commands.trace", "--step", "3", "--row", "1"], folder)
    assert any(info["path"] in traced for info in store.document_infos())

    text = folder / "corpus/module_007.py"
    text.write_text(text.read_text() + "# edited\n")
    why = run_forked(PARROTFLOW, ["why", "evaluate"], folder, environment(folder)).stdout
    assert re.search(r"in_parts +run +corpus modified", why), why
    assert repro(folder, "in_parts") == ["in_parts"]
    assert outs(folder)["data/tokens/train"] != first
