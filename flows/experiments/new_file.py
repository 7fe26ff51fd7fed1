"""`parrotflow sweep --new NAME` and `parrotflow search --new NAME`: a file to fill in, which runs as it is."""

from pathlib import Path

from stages.runtime.atomic import atomic_write
from stages.runtime.entry import UserError

EXPERIMENT = """\
# What each key means, and what else there is: docs/how-to/experiments.md. Then: parrotflow sweep {name} --dry
question: Does a higher learning rate of Muon lower the held-out loss?
targets: [evaluate]               # a run ends at this stage
base:                             # what all runs change in params.yaml
  train.max_steps: 200
axes:                             # every combination of levels runs once for each seed
  rate: {{param: train.optimizer.muon_learning_rate, values: [0.004, 0.008]}}
  # recipe:                       # a level may change several params, or choose from conf/
  #   Muon: {{optimizer: muon}}
  #   AdamW: {{optimizer: adamw, train.schedule.warmup_steps: 50}}
seeds: {{keys: [train.seed], values: [0, 1, 2]}}
metrics:                          # FILE:KEY of a report; better: lower, higher or null
  bits_per_byte: {{label: bits per byte, better: lower, source: "reports/evaluate.json:bits_per_byte"}}
curves:
  held_out:
    label: held-out bits per byte
    source: "reports/curves/validation_bits_per_byte.tsv:validation_bits_per_byte"
tables:
  main: {{caption: Held-out bits per byte., rows: [rate], metrics: [bits_per_byte]}}
comparisons:                      # differences with their 95 % interval, paired by seed
  against_default: {{caption: Against the default rate, axis: rate, baseline: "0.004", metrics: [bits_per_byte]}}
figures:
  curves: {{kind: curves, caption: Held-out bits per byte over the steps., curve: held_out}}
claims:                           # sentences that are checked against the runs
  - says: The higher rate ends below the default.
    holds_if:
      - {{difference: bits_per_byte, levels: {{rate: ["0.008", "0.004"]}}, high: {{below: 0}}}}
"""

SEARCH = """\
# What each key means, and what else there is: docs/how-to/experiments.md, "Search". Then: parrotflow search {name}
question: Which learning rate of Muon gives the lowest held-out loss?
targets: [train]                  # a run ends at this stage
base:                             # what all runs change in params.yaml
  train.max_steps: 200
space:                            # a range, or choices: [8, 16]
  train.optimizer.muon_learning_rate: {{low: 0.001, high: 0.02, log: true}}
objective: {{source: "reports/train.json:validation_bits_per_byte", better: lower}}
budget: {{runs: 8}}                 # also hours; no run begins when it is spent
stop_early:                       # runs that do badly so far are stopped
  curve: "reports/curves/validation_bits_per_byte.tsv:validation_bits_per_byte"
"""


def write_new(path: Path, text: str) -> str:
    """Write a file to fill in, and say what to do with it. Raises UserError if it is there."""
    if path.exists():
        raise UserError(f"{path} is there already; choose another name, or remove it")
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, text.format(name=path.stem))
    return f"wrote {path}: edit it, commit it"
