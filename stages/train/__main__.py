"""Token store -> model: `python -m stages.train`.

Checks what can be checked without a worker, then starts `accelerate launch` of `stages.train.worker`.
"""

import os
import signal
import sys

from stages.runtime.errors import EXIT_TERMINATED, STAGES_TO_DO

if __name__ == "__main__":
    # The imports below take seconds. Nothing has begun by then, so SIGTERM may end the process at once.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(EXIT_TERMINATED))

from stages.formats.model_folder import TOKENIZER
from stages.formats.tokens import TOKENS, TRAIN, VALIDATION, TokenStore
from stages.runtime.launch import SEGMENT, device_count, launch_config, require_devices
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage
from stages.runtime.stage_code import require_locked
from stages.train.checkpoint.identity import TRAIN_LIBRARIES, check_start, check_vocabulary
from stages.train.commands.forecast import make_forecast
from stages.train.compute.data.order import open_order
from stages.train.compute.model.build import build_config
from stages.train.compute.model.source import source_folder
from stages.train.launcher import check_batch, check_store, describe_precision, launch, note_dropout, note_idle_devices
from stages.train.monitoring.params import MonitoringParams
from stages.train.monitoring.report import check_trackers
from stages.train.origins import describe_order
from stages.train.params import TrainParams


def main() -> None:
    os.environ.pop(SEGMENT, None)  # only `stages.train.segment` sets it
    params = read_section("train", TrainParams)
    require_locked(*TRAIN_LIBRARIES)  # their versions are part of the fingerprint that finds checkpoints
    config = launch_config()
    require_devices(config)
    precision = describe_precision(params.precision, config.device_type)
    check_batch(params, config)
    check_trackers(read_section("monitoring", MonitoringParams))
    training, validation = TokenStore(TOKENS / TRAIN), TokenStore(TOKENS / VALIDATION)
    for store in (training, validation):
        check_store(store, params, TOKENIZER)
    order = open_order(training, params)
    notes = config.notes
    if params.start_checkpoint:
        check_start(params.start_checkpoint, params.model_dump())
    if params.start_model:
        source_folder(params.start_model, download=True)
        notes += check_vocabulary(params.start_model)
    notes += note_dropout(params, build_config(params, training.manifest))

    forecast = make_forecast(params, training.manifest, config)
    instead = "" if config.on_cpu or device_count() else "; torch finds no GPU: on the CPU"
    many = "es" if config.processes > 1 else ""
    shown = [] if STAGES_TO_DO in os.environ else forecast.lines  # `parrotflow run` shows it before the run
    for line in [*notes, *describe_order(order, training), *note_idle_devices(config), *shown]:
        print(line, flush=True)
    forecast.check_fits()
    print(f"launching {config.processes} process{many} by {config.path}, in {precision}{instead}", flush=True)
    if code := launch(config, params):
        sys.exit(code)


if __name__ == "__main__":
    run_stage(main)
