"""The variables PARROTFLOW_*: how a run is executed, which changes no result. docs/environment.md says more of each.

`parrotflow doctor` shows those that are set, and a misspelt one, which would otherwise be ignored.
"""

import difflib
from collections.abc import Mapping

PREFIX = "PARROTFLOW_"

VARIABLES = {
    "PARROTFLOW_LAUNCH": ("your `accelerate config`, else `one_gpu` or `cpu`", "how training and evaluation launch"),
    "PARROTFLOW_MICRO_BATCH": ("by the hardware", "sequences in one forward pass"),
    "PARROTFLOW_RESTARTS": ("3", "how often workers that died are started again"),
    "PARROTFLOW_GRACE_SECONDS": ("none", "how long training may take to save after SIGTERM"),
    "PARROTFLOW_MIRROR": ("none", "a second home for the newest checkpoint, an fsspec URL"),
    "PARROTFLOW_COMPILE": ("`auto`", "torch.compile: on, off or auto"),
    "PARROTFLOW_CONTINUE": ("none", "the run to continue although the code has changed"),
    "PARROTFLOW_PROFILE": ("none", "training steps whose time and memory are recorded, such as 10-12"),
    "PARROTFLOW_WORKERS": ("all cores", "processes of the data stages; programs that `score` runs at once"),
    "PARROTFLOW_EVALUATE_BATCH": ("16 on a GPU, 1,024 tokens on a core", "windows that the evaluation scores at once"),
    "PARROTFLOW_EVALUATE_PROCESSES": ("one for each GPU, else 1", "processes that share what is scored and written"),
    "PARROTFLOW_HARNESS_BATCH": ("16 on a GPU, 4 on a CPU", "requests of lm-evaluation-harness answered at once"),
    "PARROTFLOW_STAGES_AT_ONCE": ("2", "stages that run side by side"),
    "PARROTFLOW_RESOURCES": ("1 of each", "how many stages may use a named resource at once"),
    "PARROTFLOW_DOWNLOADS": ("4", "files of HTTP that `collect` downloads at once"),
    "PARROTFLOW_SHARD_CACHE_GB": ("50", "gigabytes that each kind of result may keep in .parrotflow/cache"),
    "PARROTFLOW_SIGNING_KEY": ("none", "private key of ssh-keygen that signs published revisions"),
    "PARROTFLOW_SIGNING_PASSPHRASE": ("none", "its passphrase"),
    "PARROTFLOW_TRUSTED_KEY": ("none", "public key that a revision must be signed by"),
    "PARROTFLOW_SOURCE": (
        "the folder in which the worker runs; for cells of a sweep, its `origin`",
        "the git repository that deployments run",
    ),
    "PARROTFLOW_CHECKOUT": ("`.parrotflow/checkout`", "where deployments keep their checkout"),
}
"""Name -> (default, meaning)."""

SET_BY_STAGES = {
    "PARROTFLOW_LAUNCH_SETTINGS",
    "PARROTFLOW_SEGMENT",
    "PARROTFLOW_SUPERVISION",
    "PARROTFLOW_TRAIN_SECTION",
}
"""How processes of one stage tell each other what to do; nobody else sets them."""


def are_set(environment: Mapping[str, str]) -> dict[str, str]:
    """Of the variables those that are set, with their meaning."""
    return {name: meaning for name, (_, meaning) in VARIABLES.items() if name in environment}


def misspelt(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Names that begin like ours and are none, each with the one that it resembles."""
    unknown = [name for name in environment if name.startswith(PREFIX) and name not in {*VARIABLES, *SET_BY_STAGES}]
    return {name: next(iter(difflib.get_close_matches(name, VARIABLES, 1)), None) for name in sorted(unknown)}
