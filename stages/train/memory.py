"""The memory of a training step in one process, by part: the step itself, run on tensors without values.

Two steps of the run's own model, loss and optimizers on torch's fake tensors, which have a shape, a dtype and a device,
and no memory. Every tensor that an operation makes is counted until nothing refers to its storage any more. So the
forecast follows what the architecture saves for its backward pass, and the loss and the optimizers of this package. It
is of a step that is not compiled. What it does not see: what kernels need inside themselves, the interpreter and its
libraries, and that an allocator's free pieces may not fit together.
"""

import logging
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig, PreTrainedModel

from stages.train.model.attention import (
    mask_documents_where_needed,
    may_use_document_kernel,
    one_line,
    use_document_kernel,
    use_unmasked,
)
from stages.train.model.build import without_values
from stages.train.model.loss import SWITCH, CausalLoss
from stages.train.optim.optimizers import build_optimizers
from stages.train.parallel import blocks
from stages.train.params import TrainParams

MemoryPart = Literal["weights", "gradients", "optimizer", "activations", "loss"]


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is active; `part` says for what new tensors are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.part: MemoryPart = "activations"
        self.held: Counter[MemoryPart] = Counter()
        """Bytes now."""
        self.peak: Counter[MemoryPart] = Counter()
        """Bytes at the moment when their sum was largest."""
        self._part_of: dict[int, MemoryPart] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count the tensors that it makes."""
        call: Callable[..., Any] = _grouped_mm if func is torch.ops.aten._grouped_mm.default else func
        made = call(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor):
                self.count(value, self.part)
        return made

    def count(self, tensor: Tensor, part: MemoryPart) -> None:
        """Count a tensor's storage as a part, where it is not counted yet."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._part_of:
            return
        self._part_of[key] = part
        self.held[part] += size
        weakref.finalize(storage, self._forget, key, size).atexit = False
        if self.held.total() > self.peak.total():
            self.peak = self.held.copy()

    def move(self, tensor: Tensor, part: MemoryPart) -> None:
        """Count a tensor as another part from now on: what was an intermediate result is now a gradient."""
        storage = tensor.untyped_storage()
        before = self._part_of[storage._cdata]
        self._part_of[storage._cdata] = part
        self.held[before] -= storage.nbytes()
        self.held[part] += storage.nbytes()

    @contextmanager
    def counting_as(self, part: MemoryPart) -> Iterator[None]:
        """New tensors within are for `part`."""
        before, self.part = self.part, part
        yield
        self.part = before

    def _forget(self, key: int, size: int) -> None:
        self.held[self._part_of.pop(key)] -= size


def _grouped_mm(a: Tensor, b: Tensor, offsets: Tensor | None = None, *others: Any, **options: Any) -> Tensor:
    """The product of a mixture's tokens with their experts' matrices: its shape in any dtype.

    torch 2.13 knows the shape in bf16 only (`torch._meta_registrations.meta_grouped_mm`), the kernel takes fp32 too.
    """
    if a.ndim == 2 and b.ndim == 3:  # tokens by their experts' matrices
        return a.new_empty(a.shape[0], b.shape[-1])
    if a.ndim == 2 and b.ndim == 2 and offsets is not None:  # the gradient of the matrices
        return a.new_empty(len(offsets), a.shape[0], b.shape[-1])
    made: Tensor = torch.ops.aten._grouped_mm.default(a, b, offsets, *others, **options)
    return made


@dataclass(frozen=True)
class Process:
    """What one process does in a step, and how the others share the model with it."""

    device_type: str
    micro_batch_size: int
    """Sequences of a forward pass."""
    micro_batches: int
    """Of a step."""
    shards: int = 1
    """Processes over which weights, gradients and the optimizer's state are cut up (FSDP2); 1: each has all."""
    has_buckets: bool = False
    """DDP's (`parallel.has_buckets`)."""


@dataclass(frozen=True)
class Memory:
    """Bytes at the moment of a step when they are most."""

    parts: Counter[MemoryPart]
    """Without `activations` and `loss` where the model cannot be run without values."""
    reason: str = ""
    """Why it cannot be."""

    @property
    def total(self) -> int:
        """All parts together."""
        return self.parts.total()


def memory_of_step(params: TrainParams, config: PreTrainedConfig, process: Process) -> Memory:
    """The forecast for a model of `config`, whose vocabulary is padded; `params.precision` is resolved.

    Raises UserError where transformers cannot build the model.
    """
    with torch.device(process.device_type), FakeTensorMode(), quiet():
        model = without_values(config, process.device_type).train()
        step = FakeStep(model, params, process)
        with step.tracker:
            state = step.create_state()
            try:
                parts = step.run()
            except Exception as error:  # Values decide what some models do; other operations have no fake.
                return Memory(step.shared_out(state), one_line(error)[:200])
    return Memory(step.shared_out(parts))


class FakeStep:
    """A training step of a fake model."""

    def __init__(self, model: PreTrainedModel, params: TrainParams, process: Process) -> None:
        self.model = model
        self.params = params
        self.process = process
        self.optimizers = build_optimizers(model, params.optimizer, params.precision)
        self.tracker = MemoryTracker()

    def create_state(self) -> Counter[MemoryPart]:
        """Weights and a first update, which makes the optimizers' state; what they and the gradients take."""
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            self.tracker.count(tensor, "weights")
        with self.tracker.counting_as("gradients"):
            for parameter in self._trained():
                parameter.grad = torch.empty_like(parameter)
        gradients = self.tracker.held["gradients"]
        with self.tracker.counting_as("optimizer"):
            self.optimizers.step(1.0)
        return self.tracker.held + Counter[MemoryPart]({"gradients": gradients})

    def run(self) -> Counter[MemoryPart]:
        """A step with all of the state there; the parts at its peak."""
        if self.params.attention == "document":
            if may_use_document_kernel(self.model):
                use_document_kernel(self.model)
                dtype = torch.bfloat16 if self.params.precision == "bf16" else torch.float32
                mask_documents_where_needed(self.model, dtype, torch.device(self.process.device_type))
        elif self.model.config._attn_implementation == "sdpa":
            use_unmasked(self.model, self.params.sequence_length)
        if self.params.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        shape = (self.process.micro_batch_size, self.params.sequence_length)
        loss = CausalLoss(self.model, self.params, plain_head=has_plain_head(self.model, shape[1]))
        for parameter in self._trained():
            parameter.register_post_accumulate_grad_hook(self._count_gradient)  # type: ignore[no-untyped-call]
        body = self.model.base_model
        body.register_forward_hook(lambda *_: setattr(self.tracker, "part", "loss"))
        self.tracker.peak = self.tracker.held.copy()
        # The second micro-batch of a step finds the gradients of the first; later ones are like the second.
        for _ in range(min(2, self.process.micro_batches)):
            with self.tracker.counting_as("activations"):
                ids = torch.zeros(shape, dtype=torch.int64)
                losses = loss(ids, ids, ids)
                self.tracker.part = "activations"
                torch.autograd.backward(losses.sum())
                del losses
        with self.tracker.counting_as("gradients"):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.params.max_gradient_norm)
        with self.tracker.counting_as("optimizer"):
            self.optimizers.step(1.0)
        return self.tracker.peak

    def shared_out(self, parts: Counter[MemoryPart]) -> Counter[MemoryPart]:
        """The parts of one process: sums that deterministic sums hold as well, and its shard of what is cut up."""
        weights, gradients = parts["weights"], sum(parameter.nbytes for parameter in self._trained())
        more = Counter[MemoryPart]()
        if self.params.deterministic_micro_batch_size is not None:
            # The subtrees that are summed when the last micro-batch comes.
            more["gradients"] = gradients * int(math.log2(self.process.micro_batches))
        if self.process.has_buckets:
            # They are the gradients where there is one micro-batch; else the sums of the others lie next to them.
            more["gradients"] = gradients - (parts["gradients"] if self.process.micro_batches == 1 else 0)
        shards = self.process.shards
        if shards > 1:
            # A layer is gathered while the next one is, and its whole gradients are there until they are scattered.
            loss = CausalLoss(self.model, self.params, plain_head=True)
            in_blocks = [sum(parameter.nbytes for parameter in block.parameters()) for block in blocks(loss)]
            around = weights - sum(in_blocks)
            gathered = around + 2 * max(in_blocks, default=0)
            more["weights"] = gathered - (weights - weights // shards)
            more["gradients"] += gathered - (parts["gradients"] - parts["gradients"] // shards)
            more["optimizer"] = parts["optimizer"] // shards - parts["optimizer"]
        return Counter[MemoryPart]({part: parts[part] + more[part] for part in get_args(MemoryPart) if part in parts})

    def _trained(self) -> Iterator[torch.nn.Parameter]:
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def _count_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.tracker.move(parameter.grad, "gradients")


PRODUCT = {"t", "view", "_unsafe_view", "mm", "slice", "alias", "transpose", "expand", "detach"}
"""The operations of a linear layer without bias, over a part of its input."""


@torch.no_grad()
def has_plain_head(model: PreTrainedModel, sequence_length: int) -> bool:
    """What `stages.formats.plain_head` finds by a trial, from the operations that follow those of the model's body."""
    head = model.get_output_embeddings()
    names: list[list[str]] = []
    if not isinstance(head, torch.nn.Linear) or head.bias is not None:
        return False
    extra = {SWITCH: False} if hasattr(model.config, SWITCH) else {}
    for module in (model.base_model, model):
        with Operations() as operations:
            module(input_ids=torch.zeros((1, min(8, sequence_length)), dtype=torch.int64), use_cache=False, **extra)
        names.append(operations.names)
    body, whole = names
    return whole[: len(body)] == body and set(whole[len(body) :]) <= PRODUCT


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The names of the operations that run while it is active, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and note its name."""
        space, _, name = func._schema.name.partition("::")
        if space != "prim":  # questions about a tensor
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def quiet() -> Iterator[None]:
    """torch logs an operation that has no fake before it raises; the forecast says so itself."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
