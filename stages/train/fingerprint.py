"""What a run of training is: checkpoints of one fingerprint continue each other, and no others.

It covers the parameters, the data, the tokenizer, the libraries and the code. Of the code only the syntax tree counts,
so that a comment does not throw away a night's work; of the machine nothing does.
"""

import ast
import hashlib
import json
import sys
from pathlib import Path

import yaml

from stages.formats.hashes import file_sha256
from stages.formats.tokens import TokenStore
from stages.formats.versions import VERSIONS_FILE
from stages.train.params import TrainParams

LIBRARIES = ("torch", "transformers", "accelerate", "numpy")


def fingerprint(params: TrainParams, stores: list[TokenStore]) -> str:
    """16 hex digits that name everything a result hangs on."""
    versions = yaml.safe_load(VERSIONS_FILE.read_text(encoding="utf-8"))
    identity = {
        "params": params.model_dump(mode="json", exclude={"checkpoint_every_steps", "checkpoints_kept"}),
        "data": [file_sha256(store.folder / "manifest.json") for store in stores],
        "libraries": {name: versions[name] for name in LIBRARIES},
        "code": code_sha256(),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def code_sha256() -> str:
    """Of the syntax trees of this stage's modules and of the formats that they have loaded."""
    formats = [module.__file__ for name, module in sys.modules.items() if name.startswith("stages.formats.")]
    files = sorted({*Path(__file__).parent.glob("*.py"), *(Path(file) for file in formats if file)})
    trees = [ast.dump(ast.parse(file.read_text(encoding="utf-8"))) for file in files]
    return hashlib.sha256("\n".join(trees).encode()).hexdigest()
