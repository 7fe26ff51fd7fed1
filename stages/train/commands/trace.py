"""From a training step back to the documents that it trained on.

    parrotflow data trace --step 120

The order of the data follows from the settings in `model/training.json`, or in params.yaml if there is no model. The
tokens must be those whose hash is recorded there.
"""

from pathlib import Path

from stages.formats.model_folder import MODEL, TRAINING_RUN
from stages.formats.reports import read_json
from stages.formats.tokens import STORE_MANIFEST, TOKENS, TRAIN, TokenStore
from stages.runtime.atomic import file_sha256
from stages.runtime.errors import UserError, visible
from stages.runtime.section import read_section
from stages.train.compute.data.order import open_order
from stages.train.compute.params import DataOrder
from stages.train.origins import origins
from stages.train.params import TrainParams


def trace(*, step: int) -> None:
    """Print a line for each span of the documents that a step trained on.

    Parameters
    ----------
    step
        Counted from 1, as in the curves.
    """
    params, store = trained_order(), TokenStore(TOKENS / TRAIN)
    if not 1 <= step <= params.max_steps:
        raise UserError(f"--step {step}: the run has the steps 1 to {params.max_steps} (train.max_steps)")
    started = trained_elsewhere()
    if step <= started:
        raise UserError(f"--step {step}: steps 1 to {started} belong to the run in train.start_from: trace them there")
    for origin in origins(store, open_order(store, params), step):
        of = f" ({origin.license})" if origin.license else ""
        where = f"{origin.source}:{origin.path}{of}"
        print(f"row {origin.row:>3}  {visible(where)}  tokens {origin.first}..{origin.stop}")


def trained_elsewhere() -> int:
    """The step of the checkpoint in `start_from`; 0 if the run started from none."""
    recorded = read_json(MODEL / TRAINING_RUN) if (MODEL / TRAINING_RUN).exists() else {}
    name = Path(recorded.get("start_from") or "").name
    return int(name.removeprefix("step-")) if name.startswith("step-") else 0


def trained_order() -> DataOrder:
    """The data order of the run that made `model/`, or that of params.yaml if there is no model.

    Raises UserError if the model was trained on other tokens.
    """
    recorded, manifest = MODEL / TRAINING_RUN, TOKENS / TRAIN / STORE_MANIFEST
    if not recorded.exists():
        params = read_section("train", TrainParams)
        return DataOrder.model_validate(params.model_dump(include=set(DataOrder.model_fields)))
    values = read_json(recorded)
    if not manifest.is_file() or values["tokens_sha256"] != file_sha256(manifest):
        raise UserError(
            f"{TOKENS / TRAIN}: not the tokens that {MODEL}/ was trained on; check out the commit that trained it, "
            "then `dvc checkout` brings both back if the cache has them"
        )
    return DataOrder.model_validate({name: values.get(name) for name in DataOrder.model_fields})
