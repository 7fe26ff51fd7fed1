"""The card's account of training: hyper-parameters, result, software, hardware, and how to reproduce it."""

from typing import Any

from stages.formats.markdown import table
from stages.formats.revision.execution import Session
from stages.formats.revision.layout import CURVES
from stages.publish.card.values import duration, flat, shown
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

MOST_OF_IT = 0.9
"""Of a training's tokens: a session with fewer was not all of it."""


def training(inputs: Inputs, with_curves: bool) -> str:
    """What training reported, what it was told, and on what it ran."""
    rows = [(title(name), shown(value)) for name, value in sorted(inputs.training.items())]
    note = (
        "Validation values are of few held-out sequences, measured during training; those under Evaluation are of all "
        "held-out text.\n\n"
        if "validation_loss" in inputs.training
        else ""
    )
    picture = f"![Loss and learning rate by step]({CURVES})\n\n" if with_curves else ""
    return (
        f"## Training\n\n{picture}{table(('result', ''), rows)}\n{note}### Hyper-parameters\n\n{parameters(inputs)}\n"
        f"### Hardware and time\n\n{hardware(inputs)}\n### Software\n\n{software(inputs)}"
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
    """What the training ran on and how long; said to be unknown where the report belongs to another run."""
    if inputs.execution is not None and inputs.execution.sessions:
        heading = ("steps", "device", "instructions", "processes", "threads of each", "precision", "compiled")
        where = table(heading, map(session, inputs.execution.sessions))
    elif inputs.facts is not None:
        rows = [(title, shown(inputs.facts[name])) for name, title in HARDWARE.items() if name in inputs.facts]
        where = table(("hardware", ""), rows)
    else:
        return "The hardware of the training is not recorded for these weights.\n"
    return f"{where}{time(inputs)}"


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


def time(inputs: Inputs) -> str:
    """How long it took and how much was computed, as far as that was reported. Energy is not measured.

    The report is of the last session: of a training that was continued after a stop it does not say how long all took.
    """
    facts, tokens = inputs.facts or {}, inputs.training.get("tokens") or 0
    seconds, speed, per_token = (
        float(facts.get(name) or 0) for name in ("seconds", "tokens_per_second", "flops_per_token")
    )
    parts = []
    if seconds and seconds * speed >= MOST_OF_IT * tokens:
        parts.append(f"The training took {duration(seconds)}, at {speed:,.0f} tokens per second.")
    elif seconds:
        parts.append("The training was continued after a stop; how long all of it took was not measured.")
    if per_token and tokens:
        parts.append(
            f"It computed about {per_token * tokens:.2g} floating-point operations ({per_token:.3g} per token, "
            f"{tokens:,} tokens)."
        )
    if parts:
        parts.append("Its energy was not measured.")
    return f"\n{' '.join(parts)}\n" if parts else ""


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
