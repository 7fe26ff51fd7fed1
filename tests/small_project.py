"""The builder of small projects: params.yaml of any stages with tiny values, locked versions, documents, a repository.

What builds on it: tests/trained_project.py (the data stages' results and a model), tests/train/small_run.py (token
stores), tests/flows/small_pipeline.py (the whole pipeline) and tests/flows/toy.py (stages of shell commands).
"""

import copy
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from stages.formats.documents import Document, document_id

ROOT = Path(__file__).parents[1]

FILES_SOURCE: dict[str, Any] = {
    "kind": "files",
    "globs": ["corpus"],
    "name": "mine",
    "revision": "1",
    "license": "MIT",
    "share": 1.0,
    "max_bytes": None,
    "text": ["text", "content"],
    "fields": {"source": None, "path": None, "license": None},
    "part_bytes": None,
}

SECTIONS: dict[str, Any] = yaml.safe_load("""\
collect:
  sources: []
  licenses: [MIT, Apache-2.0]
  unlicensed: true
  max_document_bytes: 1000000
  max_bytes: null
  shard_bytes: 2000
clean:
  seed: 0
  filters:
    {line_length_maximum: 1000, line_length_mean_maximum: 100, alphanumeric_share_minimum: 0.25,
      characters_per_token_minimum: 1.5, digit_share_maximum: null, comment_share_minimum: null,
      comment_share_maximum: null, generated: true, assignments_minimum: null, config_or_test: null,
      no_keywords_probability: null, natural_language: null, prose: null}
  near_duplicates: null
  decontamination: null
  masks: {emails: false, ip_addresses: false, keys: false}
  split: {by: document, validation_sources: [], validation_share: 0.3}
tokenizer: {kind: bpe, vocabulary_size: 300, pattern: gpt2, training_bytes: 1000000, folder: null}
tokenize: {engine: fastokens}
train:
  seed: 0
  model:
    {model_type: gpt2, n_layer: 2, n_head: 2, n_embd: 16, resid_pdrop: 0.0, embd_pdrop: 0.0,
      attn_pdrop: 0.0}
  start_from: null
  sequence_length: 16
  mixture: null
  attention: causal
  global_batch_size: 8
  deterministic_micro_batch_size: null
  max_steps: 12
  optimizer:
    {name: muon, adamw_learning_rate: 0.003, muon_learning_rate: 0.003, betas: [0.9, 0.95], epsilon: 1.0e-8,
      momentum: 0.95, weight_decay: 0.1}
  schedule: {name: cosine, warmup_steps: 2, final_share: 0.1, decay_share: 0.2}
  max_gradient_norm: 1.0
  precision: fp32
  head_rows: null
  gradient_checkpointing: false
  evaluation_sequences: 6
  export_steps: []
monitoring:
  log_every_steps: 1
  evaluate_every_steps: 4
  checkpoint_every_steps: 3
  checkpoints_kept: 2
  milestone_every_steps: null
  trackers: []
evaluate: {context_length: null, stride: null, sets: {}, answers: {}, baselines: []}
generate:
  seed: 0
  width: 48
  language: python
  headers: {count: 3, temperature: 0.8, top_p: 0.95, max_new_tokens: 12, header_bytes: 60}
  problems:
    sets: [{path: evaluation/problems/python.jsonl, language: python, stop: null}]
    samples: 2
    temperature: 0.8
    top_p: 0.95
    max_new_tokens: 6
harness: {tasks: [], num_fewshot: null, limit: null, seed: 0}
score:
  run_generated_code: false
  k: [1]
  limits: {cpu_seconds: 10, wall_seconds: 300.0, memory_megabytes: 256}
card:
  describes: [mine]
  license: apache-2.0
  language: [code]
  tags: [tiny]
  prompt: def f(
  description: A model for tests.
  authors: []
  contact: null
  intended_use: For tests.
  limitations: [It knows nothing.]
publish:
  name: tiny
  folder: published
  repository: null
  private: true
  dataset_repository: null
  include_data: false
  gate: {bits_per_byte_at_most: null, allow_worse: false, tolerance: 0.0}
""")
SECTIONS["collect"]["sources"] = [FILES_SOURCE]


DATA_STAGES = ("collect", "clean", "tokenizer", "tokenize")


def changed(values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with some values changed: `collect__max_bytes=3` sets collect.max_bytes."""
    result = copy.deepcopy(values)
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        section = result
        for part in path:
            section = section[part]
        section[last] = value
    return result


def sections(*stages: str, **changes: Any) -> dict[str, Any]:
    """The sections of the given stages, of the data stages where none is given, with some values changed."""
    return changed({name: SECTIONS[name] for name in stages or DATA_STAGES}, **changes)


def write_params(folder: Path, *stages: str, **changes: Any) -> None:
    """Write params.yaml with the sections of the given stages."""
    (folder / "params.yaml").write_text(yaml.safe_dump(sections(*stages, **changes), sort_keys=False), encoding="utf-8")


def write_project(folder: Path, *stages: str, **changes: Any) -> None:
    """Write params.yaml and requirements.lock."""
    write_params(folder, *stages, **changes)
    if not (folder / "requirements.lock").exists():
        shutil.copyfile(ROOT / "requirements.lock", folder / "requirements.lock")


DVC, PARROTFLOW = "dvc", "flows.cli"


def run_module(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    stderr: int = subprocess.PIPE,
) -> "subprocess.CompletedProcess[str]":
    """Run `python -m MODULE` in a folder to its end."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False
    )


def make_repository(folder: Path) -> None:
    """Make a folder a repository of git and DVC, with nothing committed."""
    empty = Path(_empty_repository().name)
    for name in (".git", ".dvc"):
        shutil.copytree(empty / name, folder / name)
    if not (folder / ".dvcignore").exists():
        shutil.copyfile(empty / ".dvcignore", folder / ".dvcignore")


@functools.cache
def _empty_repository() -> "tempfile.TemporaryDirectory[str]":
    """Made once by each test process: DVC takes half a second."""
    folder = tempfile.TemporaryDirectory()
    for command in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
        subprocess.run(command, cwd=folder.name, check=True)
    for path in (Path(folder.name) / ".dvc/tmp").iterdir():  # among them the time by which DVC tells repositories apart
        path.unlink()
    return folder


def function_text(number: int) -> str:
    """A small Python module, another one for each number."""
    lines = [
        f"def function_{number}_{k}(value):\n    total = value + {number * k}\n    return total\n" for k in range(5)
    ]
    return "\n\n".join(lines)


def write_corpus(folder: Path, count: int) -> None:
    """`count` Python files below `corpus/`."""
    (folder / "corpus").mkdir(exist_ok=True)
    for number in range(count):
        (folder / "corpus" / f"module_{number:03d}.py").write_text(function_text(number), encoding="utf-8")


def added_file(name: str) -> str:
    """What the diffs of CONTRIBUTING.md add as a file."""
    diffs = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    (diff,) = (diff for diff in diffs if diff.startswith(f"+# {name}\n"))
    return "".join(f"{line[1:]}\n" for line in diff.partition("\n # params.yaml")[0].splitlines()[1:])


def document(text: str, source: str = "s", path: str = "p.py") -> Document:
    """A document with that text."""
    return Document(document_id(text), source, "1", path, "MIT", text)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
