"""What a finished run writes: the model folder, the metrics, the curves, and the record of its execution.

The record describes each session: everything besides parameters, code and data that can change a bit. It has no names
of machines or users, paths or secrets: only environment variables that are known to affect the arithmetic are recorded,
without values that could be paths.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from stages.formats.model_folder import MODEL, TRAINING_RUN, weights_sha256
from stages.formats.reports import CURVES_FOLDER, write_json, write_metrics
from stages.formats.revision.execution import TRAIN_SPEED, Execution, Session, computing_variables, limits
from stages.formats.training import TrainingReport
from stages.runtime.atomic import atomic_folder, file_sha256
from stages.runtime.errors import UserError
from stages.train.checkpoint.checkpoints import Checkpoints
from stages.train.checkpoint.manifest import TrainingProgress, fault, weights_in
from stages.train.compute.fsdp import uses_fsdp
from stages.train.compute.parallel import full_weights
from stages.train.compute.step import Trainer
from stages.train.export import plain_model, save_model, write_tokenizer
from stages.train.launcher import LAUNCH_SETTINGS
from stages.train.monitoring.throughput import Throughput, device_name
from stages.train.origins import shares


def write_train_results(
    trainer: Trainer, throughput: Throughput, progress: TrainingProgress, checkpoints: Checkpoints
) -> None:
    """Write the results of a run. Every process calls this.

    Raises UserError if a checkpoint of `export_steps` is damaged.
    """
    facts = speed(trainer, throughput)  # before the model is written, which would count as training time
    trained = full_weights(trainer.raw_model.model)
    trainer.accelerator.wait_for_everyone()  # the last exchange: the other processes may end now
    if not trainer.accelerator.is_main_process:
        return
    params = checkpoints.params
    exported = [checkpoints.path(step) for step in params.export_steps]
    for path in exported:
        if problem := fault(path):
            raise UserError(f"train: {path}, of train.export_steps, is damaged: {problem}; delete it and run again")
    with atomic_folder(CURVES_FOLDER) as folder:
        checkpoints.curves.copy_to(folder)
    with atomic_folder(MODEL) as folder:
        save_model(plain_model(trainer.raw_model, trained, trainer.store.manifest), folder)
        write_tokenizer(folder, trainer.store.manifest.eos_id)
        write_json(folder / TRAINING_RUN, order_of_data(trainer))
        for path in exported:
            weights = weights_in(path, like=trained)
            (folder / path.name).mkdir()
            save_model(plain_model(trainer.raw_model, weights, trainer.store.manifest), folder / path.name)
        sha256 = weights_sha256(folder)
        report = TrainingReport(
            weights_sha256=sha256,
            parameters=facts["parameters"],
            steps=progress.step,
            tokens=params.tokens,
            epochs=round(params.tokens / trainer.store.manifest.tokens, 4),
            model_flops=float(trainer.flops_per_token * params.tokens),
            training_loss=round(progress.training_loss, 6),
            mixture=shares(trainer.order),
        )
        report.write()
        write_metrics("train", {"epochs": report.epochs, "training_loss": report.training_loss})
    history = checkpoints.history
    if throughput.tokens:  # if this session trained nothing, keep the speed that an earlier one wrote
        write_json(TRAIN_SPEED, facts | {"weights_sha256": sha256})
    Execution(
        weights_sha256=sha256,
        fingerprint=checkpoints.folder.name,
        sessions=history.sessions_until(progress.step),
        checkpoints=history.contents,
    ).write()


def order_of_data(trainer: Trainer) -> dict[str, Any]:
    """The settings that lead from a step back to its documents, and the precision.

    The weights depend on all of them, so equal weights come with an equal file.
    """
    names = {"seed", "max_steps", "global_batch_size", "sequence_length", "precision"}
    tokens = {"tokens_sha256": file_sha256(trainer.store.folder / "manifest.json")}
    names |= {name for name in ("mixture", "start_from") if getattr(trainer.params, name)}
    return trainer.params.model_dump(include=names) | tokens


def speed(trainer: Trainer, throughput: Throughput) -> dict[str, Any]:
    """The hardware and the speed since the last start."""
    return {
        "device": device_name(trainer.accelerator.device),
        "processes": trainer.accelerator.num_processes,
        "threads_per_process": torch.get_num_threads(),
        "micro_batch_size": trainer.micro_batch_size,
        "precision": trainer.params.precision,
        "compiled": trainer.compiled,
        "flops_per_token": throughput.flops_per_token,
        "parameters": trainer.raw_model.model.num_parameters(),
        "peak_flops": throughput.peak_flops,
        "model_flops_utilization": None,
    } | {name: round(value, 4) for name, value in throughput.metrics().items()}


VECTOR_INSTRUCTIONS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "neon", "asimd", "sve", "sme", "bf16", "fp16", "dot")
"""Prefixes of CPU flags that affect matrix products."""

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def describe_session(trainer: Trainer, first_step: int) -> Session:
    """The session of this process, from `first_step` (counted from 1) to the run's last step, where it may not arrive.

    If machines differ, it describes the main process's.
    """
    params, processes, device = trainer.params, trainer.accelerator.num_processes, trainer.accelerator.device
    rows_per_process = params.global_batch_size // processes
    distributed = "fsdp2" if uses_fsdp() else "ddp" if processes > 1 else "none"
    flags = torch.cpu.get_capabilities()
    return Session(
        first_step=first_step,
        last_step=params.max_steps,
        device=device_name(device),
        device_type=device.type,
        cpu_flags=sorted(name for name, has in flags.items() if has is True and name.startswith(VECTOR_INSTRUCTIONS)),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        isa_limits=limits(os.environ),
        processes=processes,
        machines=int(os.environ.get("GROUP_WORLD_SIZE") or 1),  # set by torchrun
        threads_per_process=torch.get_num_threads(),
        precision=params.precision,
        compiled=trainer.compiled,
        micro_batch_size=trainer.micro_batch_size,
        gradient_accumulation_steps=-(-rows_per_process // trainer.micro_batch_size),
        distributed=distributed,
        environment=computing_variables(os.environ),
        launch=os.environ.get(LAUNCH_SETTINGS),
        versions=imported_versions(trainer.compiled),
    )


def imported_versions(compiled: bool) -> dict[str, str]:
    """Library versions with build tags, and the C++ compiler's if the model is compiled."""
    libraries = ("torch", "transformers", "accelerate", "numpy", "safetensors")
    versions = {name: str(sys.modules[name].__version__) for name in libraries if name in sys.modules}
    versions |= {"python": platform.python_version(), "libc": " ".join(platform.libc_ver())}
    if torch.cuda.is_available():
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        versions |= {"cuda": str(torch.version.cuda), "cudnn": str(cudnn), "nccl": ".".join(map(str, nccl))}
        versions |= {"gpu driver": _driver_version(), "tf32": "on" if torch.backends.cuda.matmul.allow_tf32 else "off"}
    if compiled and "triton" in sys.modules:
        versions["triton"] = str(sys.modules["triton"].__version__)
    compilers = (shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++"))
    if compiled and (compiler := next(filter(None, compilers), None)):
        dumped = subprocess.run([compiler, "-dumpfullversion"], check=False, capture_output=True, text=True)
        versions["c++"] = dumped.stdout.strip()
    return versions


def _driver_version() -> str:
    """The version of the kernel module; empty if there is none."""
    text = NVIDIA_DRIVER.read_text(encoding="utf-8") if NVIDIA_DRIVER.exists() else ""
    version = re.search(r"Kernel Module.*?(\d+\.\d+(\.\d+)?)", text)
    return version[1] if version else ""
