"""Which optimizer trains which tensors of the model: `python -m stages.train.commands.groups [PARAMS]`.

The model is built without weights, so its size does not matter. `parrotflow params` shows this where a model or an
optimizer was chosen.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from stages.formats.tokens import Manifest
from stages.runtime.entry import run_stage
from stages.runtime.section import PARAMS_FILE, check_section, read_params_file
from stages.train.commands.forecast import vocabulary
from stages.train.model.build import model_without_weights
from stages.train.optim.optimizers import Role, weights
from stages.train.params import TrainParams


def main() -> None:
    """Print a line for each group."""
    parser = argparse.ArgumentParser(prog="python -m stages.train.commands.groups", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("params", nargs="?", type=Path, default=PARAMS_FILE, help="default: %(default)s")
    values = read_params_file(parser.parse_args().params)
    params = check_section("train", values.get("train"), TrainParams)
    print("\n".join(lines(params, vocabulary(values))))


def lines(params: TrainParams, tokens: Manifest) -> Iterator[str]:
    """A header, and for each group its optimizer, decay, role, number of tensors and parameters, and name.

    A group is of tensors of one role whose names differ in their numbers alone; groups of one role come together, in
    the model's order.
    """
    trained = list(weights(model_without_weights(params, tokens)))
    # torch fuses no optimizer over tensors without values, so each is built over a number in place of a tensor.
    numbers = [replace(weight, parameter=nn.Parameter(torch.zeros(()))) for weight in trained]
    taken = {
        id(number): (column, float(group.get("weight_decay", 0)))
        for column, optimizer in params.optimizer.build(numbers, params.precision).items()
        for group in optimizer.param_groups
        for number in group["params"]
    }
    tensors, parameters = Counter[tuple[str, float, Role, str]](), Counter[tuple[str, float, Role, str]]()
    for weight, number in zip(trained, numbers, strict=True):
        group = (*taken[id(number.parameter)], weight.role, re.sub(r"\.\d+\.", ".*.", weight.name))
        tensors[group] += 1
        parameters[group] += weight.parameter.numel()
    roles = [role for _, _, role, _ in tensors]
    yield f"{'optimizer':10}{'decay':>6}  {'role':10}{'tensors':>8}{'parameters':>14}  name"
    for group in sorted(tensors, key=lambda group: roles.index(group[2])):
        column, decay, role, name = group
        yield f"{column:10}{decay:6g}  {role:10}{tensors[group]:8,}{parameters[group]:14,}  {name}"


if __name__ == "__main__":
    run_stage(main)
