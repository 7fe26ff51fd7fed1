"""Which optimizer trains which tensors of the model: `python -m stages.train.commands.groups [PARAMS]`.

The model is built without weights, so its size does not matter. `parrotflow params` shows this where a model or an
optimizer was chosen.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from stages.formats.tokens import Manifest
from stages.runtime.entry import run_stage
from stages.runtime.section import PARAMS_FILE, check_section, read_params_file
from stages.train.model.build import build_config, check_model, padded_vocabulary, source_folder
from stages.train.optim.optimizers import Role, weights
from stages.train.params import TrainParams

NOMINAL_VOCABULARY = 4096
"""Where params.yaml does not say how large it is."""


@dataclass
class Group:
    """The tensors of one role whose names differ in their numbers alone."""

    role: Role
    name: str
    optimizer: str
    """By its column in the curves."""
    decay: float
    tensors: int = 0
    parameters: int = 0


def main() -> None:
    """Print a line for each group."""
    parser = argparse.ArgumentParser(prog="python -m stages.train.commands.groups", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("params", nargs="?", type=Path, default=PARAMS_FILE, help="default: %(default)s")
    values = read_params_file(parser.parse_args().params)
    params = check_section("train", values.get("train"), TrainParams)
    size = (values.get("tokenizer") or {}).get("vocabulary_size") or NOMINAL_VOCABULARY
    print("\n".join(lines(params, Manifest("uint32", size, 0, "", "", ()))))


def lines(params: TrainParams, vocabulary: Manifest) -> Iterator[str]:
    """A header, and for each group its optimizer, decay, role, number of tensors and parameters, and name."""
    yield f"{'optimizer':10}{'decay':>6}  {'role':10}{'tensors':>8}{'parameters':>14}  name"
    for group in groups(params, vocabulary):
        counts = f"{group.tensors:8,}{group.parameters:14,}"
        yield f"{group.optimizer:10}{group.decay:6g}  {group.role:10}{counts}  {group.name}"


def groups(params: TrainParams, vocabulary: Manifest) -> list[Group]:
    """The model's groups, those of one role together, in the model's order. Raises UserError as training would."""
    config = build_config(params, vocabulary)
    if params.start_from is None:
        check_model(config)
    else:
        config = AutoConfig.from_pretrained(source_folder(params.start_from))
    with torch.device("meta"):
        config.vocab_size = padded_vocabulary(vocabulary.vocab_size)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    trained = list(weights(model))
    # torch fuses no optimizer over tensors without values, so each is built over a number in place of a tensor.
    numbers = [replace(weight, parameter=nn.Parameter(torch.zeros(()))) for weight in trained]
    taken = {
        id(number): (column, float(group.get("weight_decay", 0)))
        for column, optimizer in params.optimizer.build(numbers, params.precision).items()
        for group in optimizer.param_groups
        for number in group["params"]
    }
    found: dict[tuple[Role, str], Group] = {}
    for weight, number in zip(trained, numbers, strict=True):
        name = re.sub(r"\.\d+\.", ".*.", weight.name)
        group = found.setdefault((weight.role, name), Group(weight.role, name, *taken[id(number.parameter)]))
        group.tensors += 1
        group.parameters += weight.parameter.numel()
    roles = list(dict.fromkeys(role for role, _ in found))
    return sorted(found.values(), key=lambda group: roles.index(group.role))


if __name__ == "__main__":
    run_stage(main)
