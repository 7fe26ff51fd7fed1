"""What the hardware decides: the precision of matrix products, whether to compile, how many sequences go in a pass.

All of it by what the hardware is, never by timing, so that the same machine always decides alike. `PARROTFLOW_COMPILE`
(auto, the default, on or off) and `PARROTFLOW_MICRO_BATCH` decide otherwise. The precision that `train.precision: auto`
means replaces it in the parameters before anything is built: the fingerprint, the reports and the provenance carry it.
"""

import os
import shutil

import torch
from accelerate import Accelerator
from torch.utils import deterministic

from stages.formats.revision.execution import Session
from stages.runtime.entry import UserError, whole_number
from stages.train.data.batches import batch_size, rows_before
from stages.train.distributed.parallel import count
from stages.train.model.loss import CausalLoss
from stages.train.params import TrainParams

COMPILE = "PARROTFLOW_COMPILE"
MICRO_BATCH = "PARROTFLOW_MICRO_BATCH"

ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""oneDNN multiplies bf16 on CPUs; these variables keep it below an instruction set (its manual, "CPU Dispatcher
Control")."""

REPAYS_FROM_FLOPS = {"cpu bf16": 5e13, "cpu fp32": 1e14, "cuda bf16": 2e16, "cuda fp32": 2e16}
"""Total work from which compilation repays its start-up: 30 to 40 s on 2 cores with an empty compiler cache. With a
GPT-2 of 4 layers it then saves 0.08 s in a step of 1e11 in bf16 (AMX), 0.05 s in fp32 (AVX-512: 4,200 tokens/s eager,
4,450 compiled). Not measured on a GPU."""

CPU_TOKENS = 8192
"""More tokens at a time gain nothing on a CPU and cost memory."""

USABLE = 0.8
"""Of the memory that is left on a GPU: the rest is for what one trial does not show (fragments, the compiler)."""


def resolve_precision(params: TrainParams, device_type: str) -> TrainParams:
    """The parameters with `auto` replaced by what it means on a device (`cpu`, `cuda`, ...); a fixed value stays.

    Raises UserError where bf16 is fixed and the GPU has no such arithmetic. Every CPU has, many slowly.
    """
    fast = multiplies_bf16_fast(device_type)
    if params.precision == "bf16" and device_type == "cuda" and not fast:
        raise UserError(
            f"params.yaml: train.precision = bf16: {torch.cuda.get_device_name()} has no bf16 arithmetic; "
            "use auto or fp32"
        )
    if params.precision != "auto":
        return params
    return params.model_copy(update={"precision": "bf16" if fast else "fp32"})


def multiplies_bf16_fast(device_type: str) -> bool:
    """Whether matrix products in bf16 are faster than in fp32.

    CPUs: with AMX ten times as fast. With AVX-512's bf16 alone they are slower (GPT-2 of 4 layers, 2 cores: 2,700
    tokens/s against 4,200), with AVX2 fifty times slower. Other devices than CUDA's were not measured: fp32.
    """
    match device_type:
        case "cuda":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        case "cpu":
            return _has_amx()
        case _:
            return False


def _has_amx() -> bool:
    limit = next((os.environ[name] for name in ONEDNN_LIMITS if os.environ.get(name)), "ALL").upper()
    return bool(torch.cpu.get_capabilities().get("amx_bf16")) and (limit in ("ALL", "DEFAULT") or "AMX" in limit)


def describe_precision(params: TrainParams, device_type: str) -> str:
    """The resolved precision, and where a fixed value is the slower one, that it is."""
    chosen = resolve_precision(params, device_type).precision
    faster = "bf16" if multiplies_bf16_fast(device_type) else "fp32"
    here = "GPU" if device_type == "cuda" else "CPU"
    slow = "" if chosen == faster else f" (slow: {faster} is faster on this {here}; train.precision: auto takes it)"
    return f"{chosen}{slow}"


def should_compile(params: TrainParams, flops_per_token: float, device: torch.device) -> bool:
    """Whether a run that starts afresh compiles: decided by the whole run's work."""
    choice, compiler = _compile_choice(), _has_compiler(device)
    if choice == "on" and not compiler:
        raise UserError(f"{COMPILE}=on: compiling for the CPU needs a C++ compiler (g++ or clang++); install one")
    if choice != "auto" or not compiler:
        return choice == "on"
    tokens = rows_before(params, params.max_steps) * params.sequence_length
    batch_sizes = 1 + len(params.batch_doublings)  # each is compiled
    repays = REPAYS_FROM_FLOPS.get(f"{device.type} {params.precision}", float("inf"))
    return tokens * flops_per_token > batch_sizes * repays


def stays_compiled(afresh: bool, sessions: list[Session], device: torch.device) -> bool:
    """Whether a run compiles that continues after `sessions`: left to itself, as the last of them did.

    `afresh` is what `should_compile` says. It would change where the run is made longer, and compiled code has other
    last bits: then no one setting repeats the run. On another kind of device the bits are others anyway.
    """
    if not sessions or _compile_choice() != "auto" or sessions[-1].device_type != device.type:
        return afresh
    return sessions[-1].compiled and _has_compiler(device)


def _compile_choice() -> str:
    choice = os.environ.get(COMPILE, "auto") or "auto"
    if choice not in ("auto", "on", "off"):
        raise UserError(f"{COMPILE}={choice}: expected auto, on or off")
    return choice


def _has_compiler(device: torch.device) -> bool:
    return device.type != "cpu" or any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++"))


def micro_batch_size(params: TrainParams, accelerator: Accelerator, model: CausalLoss) -> int:
    """Sequences of a forward pass in each process; at most its share of the largest batch. Every process calls this."""
    share: int = batch_size(params, params.max_steps - 1) // accelerator.num_processes
    if params.deterministic_micro_batch_size is not None:
        return params.deterministic_micro_batch_size
    if (given := whole_number(MICRO_BATCH, None)) is not None:
        return min(given, share)
    if accelerator.device.type != "cuda":
        return min(share, max(1, CPU_TOKENS // params.sequence_length))
    return balanced(share, _fitting_on_all(params.sequence_length, accelerator, model))


def balanced(share: int, fitting: int) -> int:
    """The size of equal micro-batches, as few as can be, of at most `fitting` sequences: 10 by at most 4 is 4, 3, 3."""
    micro_batches = -(-share // max(1, fitting))
    return -(-share // micro_batches)


def sequences_that_fit(free: int, state: int, per_sequence: int) -> int:
    """How many sequences fit into `free` bytes, besides a `state` that is allocated later; 1 at least."""
    return max(1, int((free - state) * USABLE / max(1, per_sequence)))


def _fitting_on_all(sequence_length: int, accelerator: Accelerator, model: CausalLoss) -> int:
    """The least over the processes of what fits, from the memory that one sequence takes.

    One trial of the smallest size: a search by larger ones would leave some processes out of memory in the middle of a
    sharded model's collectives, and the others waiting for them.
    """
    device = accelerator.device
    own = _fitting(sequence_length, device, model)
    if failed := accelerator.num_processes - count(accelerator, own > 0):
        raise UserError(
            f"train: not even one sequence of {sequence_length} tokens fits on {failed} of {accelerator.num_processes} "
            "devices; lower train.sequence_length, set train.gradient_checkpointing, or shard the model (FSDP)"
        )
    everywhere = accelerator.gather(torch.tensor([own], device=device))
    return int(everywhere.min().item())


def _fitting(sequence_length: int, device: torch.device, model: CausalLoss) -> int:
    """Sequences that fit on this process's GPU; 0 where one does not."""
    ids = torch.zeros((1, sequence_length), dtype=torch.int64, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        model(ids, ids, ids).sum().backward()
    except torch.OutOfMemoryError:
        return 0
    gradients = sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)
    per_sequence = torch.cuda.max_memory_allocated(device) - before - gradients
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    # Not there yet: the gradients, AdamW's two moments (Muon has one), and DDP's buckets or FSDP's gathered blocks.
    return sequences_that_fit(free, 4 * gradients, per_sequence)


def repeat_bits(device: torch.device, asked_for: bool = False) -> None:
    """Make the same run give the same bits: compiled code on a CPU otherwise adds gradients in the order of threads.

    On GPUs the fast kernels add in the order of their blocks, so there it is done only if the parameters ask for
    deterministic sums; a kernel that has no such variant then ends the run with torch's own message.
    """
    if device.type == "cpu" or asked_for:
        # Read when cuBLAS is first used (its documentation, "Results reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # A search for bugs of others, at a cost in each step.
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
