"""The card's account of training: hyper-parameters, result, software, hardware, and how to reproduce it."""

from typing import Any

from stages.formats.markdown import table
from stages.publish.card.values import flat, shown
from stages.publish.inputs import Inputs

HARDWARE = {
    "device": "device",
    "processes": "processes",
    "threads_per_process": "threads per process",
    "precision": "precision of matrix products",
    "compiled": "compiled",
}
"""Of the observed facts those that can change the result. Times are in provenance.json: they differ in every run."""


def training(inputs: Inputs) -> str:
    """What training reported, what it was told, and on what it ran."""
    rows = [(title(name), shown(value)) for name, value in sorted(inputs.training.items())]
    note = (
        "Validation values are of few held-out sequences, measured during training; those under Evaluation are of all "
        "held-out text.\n\n"
        if "validation_loss" in inputs.training
        else ""
    )
    return (
        f"## Training\n\n{table(('result', ''), rows)}\n{note}{parameters(inputs)}\n{software(inputs)}\n"
        f"{hardware(inputs)}"
    )


def title(name: str) -> str:
    """A result's name in words, a loss with its unit."""
    return name.replace("_", " ") + (" (nats per token)" if name.endswith("_loss") else "")


def parameters(inputs: Inputs) -> str:
    """Architecture and hyper-parameters with the seed, as dvc.lock records them."""
    if not inputs.recorded.training:
        return "The hyper-parameters are not recorded in dvc.lock.\n"
    return table(("parameter", ""), [(name, shown(value)) for name, value in flat(inputs.recorded.training)])


def software(inputs: Inputs) -> str:
    """The library versions that training depended on."""
    if not inputs.recorded.versions:
        return "The library versions of the training are not recorded in dvc.lock.\n"
    return table(("library", "version"), sorted(inputs.recorded.versions.items()))


def hardware(inputs: Inputs) -> str:
    """What the training ran on; said to be unknown where the report belongs to another run."""
    if inputs.facts is None:
        return "The hardware of the training is not recorded for these weights.\n"
    rows = [(title, shown(inputs.facts[name])) for name, title in HARDWARE.items() if name in inputs.facts]
    return f"{table(('hardware', ''), rows)}\nTime and speed of that run: `training` in `provenance.json`.\n"


def reproduction(inputs: Inputs) -> str:
    """What the provenance holds, and how far the weights can be reproduced."""
    fixed = inputs.recorded.training.get("deterministic_micro_batch_size")
    processes = "any number of processes" if fixed else "the same number of processes"
    gpus = "" if fixed else " On GPUs sums have no fixed order: expect agreement to rounding."
    return f"""## Reproduce

`provenance.json` next to this card names the git commit, and for each stage its command, its parameters, and the hashes
of what it read and wrote; the library versions, the hardware and the number of threads; and the sha256 of the weights.

If `git.dirty` is false there: check out that commit, install `requirements.lock` and run `dvc repro`. If it is true,
files differed from the commit: changed tracked files are named, untracked ones are counted, and the commit alone is not
enough. On CPUs of the same kind, with {processes} and threads and the same precision, the weights come out the same,
bit for bit.{gpus} On other hardware floating-point sums are taken in another order.
"""


def accepted(entries: list[dict[str, Any]]) -> str:
    """What was declared up to date without a run; nothing where nothing was."""
    if not entries:
        return ""
    rows = [
        (
            entry["stage"],
            "; ".join(entry["changes"]),
            "same syntax tree" if entry["same_syntax_tree"] else "a judgement",
            entry["because"],
            f"{entry['by']}, {entry['date']}".lstrip(", "),
        )
        for entry in entries
    ]
    return (
        "## Accepted without a run\n\nThese changes were declared not to change the result.\n\n"
        f"{table(('stage', 'change', 'how it was decided', 'because', 'by'), rows)}"
    )
