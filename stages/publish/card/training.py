"""The card's account of training: hyper-parameters, result, software, hardware, and how to reproduce it."""

from collections.abc import Sequence
from typing import Any

from stages.formats.markdown import table
from stages.formats.revision.execution import Session
from stages.formats.revision.layout import CURVES
from stages.publish.card.values import flat, shown
from stages.publish.inputs import Inputs
from stages.publish.params import PublishParams

HARDWARE = {
    "device": "device",
    "processes": "processes",
    "threads_per_process": "threads per process",
    "precision": "precision of matrix products",
    "compiled": "compiled",
}
"""Of the observed facts those that can change the result."""


def training(inputs: Inputs, with_curves: bool) -> str:
    """What training reported, what it was told, and on what it ran."""
    rows = [(title(name), shown(value)) for name, value in sorted(inputs.training.items()) if name != "model_flops"]
    note = (
        "Validation values are of few held-out sequences, measured during training; those under Evaluation are of all "
        "held-out text.\n\n"
        if "validation_loss" in inputs.training
        else ""
    )
    picture = f"![Loss and learning rate by step]({CURVES})\n\n" if with_curves else ""
    return (
        f"## Training\n\n{picture}{table(('result', ''), rows)}\n{note}### Hyper-parameters\n\n{parameters(inputs)}\n"
        f"### Hardware\n\n{hardware(inputs)}\n### Software\n\n{software(inputs)}"
    )


def title(name: str) -> str:
    """A result's name in words, a loss with its unit."""
    return name.replace("_", " ") + (" (nats per token)" if name.endswith("_loss") else "")


def parameters(inputs: Inputs) -> str:
    """Hyper-parameters with the seed, as dvc.lock records them."""
    if not inputs.recorded.training:
        return "The hyper-parameters are not recorded in dvc.lock.\n"
    return table(("parameter", ""), [(name, shown(value)) for name, value in flat(inputs.recorded.training)])


def software(inputs: Inputs) -> str:
    """The library versions that training ran with, else those that dvc.lock records."""
    sessions = inputs.execution.sessions if inputs.execution else []
    versions = sessions[-1].versions if sessions else inputs.recorded.versions
    if not versions:
        return "The library versions of the training are not recorded in dvc.lock.\n"
    return table(("library", "version"), sorted(versions.items()))


def hardware(inputs: Inputs) -> str:
    """What the training ran on and how much it computed; said to be unknown where the report belongs to another run."""
    if inputs.execution is not None and inputs.execution.sessions:
        heading = ("steps", "device", "instructions", "processes", "threads of each", "precision", "compiled")
        where = table(heading, map(session, merged(inputs.execution.sessions)))
        where += "".join(map(other_code, inputs.execution.sessions))
    elif inputs.facts is not None:
        rows = [(title, shown(inputs.facts[name])) for name, title in HARDWARE.items() if name in inputs.facts]
        where = table(("hardware", ""), rows)
    else:
        return "The hardware of the training is not recorded for these weights.\n"
    return f"{where}{computed(inputs)}"


def merged(sessions: Sequence[Session]) -> list[Session]:
    """The sessions, with those in one that ran alike: a kill changes no bit, so it changes no card either."""
    found: list[Session] = []
    for one in sessions:
        alike = found and found[-1].model_copy(update={"first_step": one.first_step, "last_step": one.last_step}) == one
        if alike:
            found[-1] = found[-1].model_copy(update={"last_step": one.last_step})
        else:
            found.append(one)
    return found


def session(found: Session) -> tuple[str, ...]:
    """One start of the trainer, as a row; a training that was stopped and continued has several."""
    machines = f" on {found.machines} machines" if found.machines > 1 else ""
    wrapped = f" ({found.distributed})" if found.distributed != "none" else ""
    return (
        f"{found.first_step:,} to {found.last_step:,}",
        found.device,
        found.cpu_capability if found.device_type == "cpu" else "",
        f"{found.processes}{machines}{wrapped}",
        str(found.threads_per_process),
        found.precision,
        shown(found.compiled),
    )


def other_code(found: Session) -> str:
    """A sentence where the steps before a session were computed by other code."""
    if found.continued_from is None:
        return ""
    return (
        f"\nThe steps before step {found.first_step:,} were computed by other code than the recorded one (training "
        f"`{found.continued_from}`), so the recorded code does not repeat them.\n"
    )


def computed(inputs: Inputs) -> str:
    """How much was computed. Times differ in every run, and the same training has the same card: they are elsewhere."""
    if not inputs.facts:
        return ""
    # Reports of older versions do not have it.
    flops, tokens = inputs.training.get("model_flops"), inputs.training["tokens"]
    amount = (
        f"The model computed about {flops:.3g} floating-point operations in training ({flops / tokens:.3g} per token, "
        f"{tokens:,} tokens). "
        if flops
        else ""
    )
    where = "Its time and speed: `training` in `provenance.json`, of the last start of the training."
    return f"\n{amount}{where} Its energy was not measured.\n"


def reproduction(params: PublishParams, inputs: Inputs) -> str:
    """What the record holds, how to rebuild the model from it, and under which conditions the bits are the same."""
    fixed = inputs.recorded.training.get("deterministic_micro_batch_size")
    processes = "any number of processes" if fixed else "the same number of processes"
    gpus = "" if fixed else " On GPUs sums have no fixed order: expect agreement to rounding."
    where = f"{params.repository}@REVISION" if params.repository else "PATH/revisions/REVISION"
    return f"""## Reproduce

```sh
parrotflow reproduce {where}
```

checks every file of the revision, rebuilds the model from its record, and says whether it comes out bit for bit the
same, and if not, what differs first. `record/` has the parameters, the pipeline with the hash of all that each stage
read and wrote, the locked library versions, where the data is, and how the training was executed. `provenance.json`
names the git commit and the sha256 of every file. Where the code differed from that commit (`git.dirty`),
`record/source.tar.gz` holds the code that ran; what it leaves out, and why, is listed under `left_out`.

On CPUs of the same kind, with {processes} and threads and the same precision, the weights come out the same,
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
            entry["because"],
            f"{entry['by']}, {entry['date']}".lstrip(", "),
        )
        for entry in entries
    ]
    return (
        "## Accepted without a run\n\nThese changes were declared not to change the result.\n\n"
        f"{table(('stage', 'change', 'because', 'by'), rows)}"
    )


def citation(params: PublishParams) -> str:
    """A BibTeX entry; the revision makes it precise."""
    authors = f"  author = {{{' and '.join(params.authors)}}},\n" if params.authors else ""
    where = f"  url = {{https://huggingface.co/{params.repository}}},\n" if params.repository else ""
    key = "".join(character for character in params.name if character.isalnum())
    return (
        "## Citation\n\n```bibtex\n"
        f"@misc{{{key},\n  title = {{{params.name}}},\n{authors}{where}"
        "  note = {Revision: see `revision` in provenance.json}\n}\n```\n"
    )


def contact(params: PublishParams) -> str:
    """Where questions go; nothing where that is not said."""
    return f"## Contact\n\n{params.contact}\n" if params.contact else ""
