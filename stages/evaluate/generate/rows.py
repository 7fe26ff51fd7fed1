"""Batches of texts that a model continues together: how tokens are drawn, and where a text ends.

Each text is a row, at its own position, in a cache of fixed shape, and a step computes all rows at once. A row's
token depends only on its own logits and its own random number.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from stages.formats.evaluation.intervals import Floats
from stages.runtime.errors import UserError

CANDIDATES = 256
"""The most likely tokens, which are summed first. Only if they do not reach top_p, a row sums all tokens."""

MIN_TEMPERATURE = 1e-6
"""Lower temperatures act as 0, because the divided logits would exceed float32."""


def sample_tokens(logits: torch.Tensor, temperature: float, top_p: float, uniforms: Floats) -> list[int]:
    """Draw a token id for each row: the most likely one at temperature 0.

    logits: (rows, vocabulary); uniforms: (rows,) in [0, 1). Raises UserError if a logit is NaN or infinite.
    """
    if not torch.isfinite(logits.amax(dim=-1)).all():
        raise UserError("the model's output is NaN or infinite because its training diverged; lower its learning rate")
    if temperature < MIN_TEMPERATURE:
        most_likely: list[int] = logits.argmax(dim=-1).tolist()
        return most_likely
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    if top_p == 1:
        cumulative = np.cumsum(probabilities.cpu().numpy(), axis=1, dtype=np.float64)
        tokens: list[int] = _index(cumulative, cumulative[:, -1], uniforms).tolist()
        return tokens
    return _from_nucleus(probabilities, top_p, uniforms, CANDIDATES)


def _from_nucleus(probabilities: torch.Tensor, top_p: float, uniforms: Floats, candidates: int) -> list[int]:
    likely = _most_likely(probabilities, candidates, on_host=probabilities.device.type == "cpu")
    rows = np.arange(len(likely))
    cumulative = np.cumsum(likely, axis=1, dtype=np.float64)
    # The last of the fewest most likely tokens, at least one, that together reach top_p.
    last = np.minimum((cumulative < top_p).sum(axis=1), likely.shape[1] - 1)
    total = cumulative[rows, last]
    index = _index(cumulative, total, uniforms)
    drawn = likely[rows, index]
    are_drawn = probabilities == torch.from_numpy(drawn).to(probabilities.device)[:, None]
    tokens: list[int] = are_drawn.byte().argmax(dim=1).tolist()
    # If several tokens are equally likely, the drawn rank counts them in the order of their ids.
    rank = index - (likely > drawn[:, None]).sum(axis=1)
    for row in np.flatnonzero(rank):
        tokens[row] = int(are_drawn[row].nonzero()[rank[row], 0])
    vocabulary = probabilities.shape[1]
    for row in np.flatnonzero(total < top_p) if candidates < vocabulary else ():
        tokens[row] = _from_nucleus(probabilities[[row]], top_p, uniforms[[row]], vocabulary)[0]
    return tokens


def _most_likely(probabilities: torch.Tensor, number: int, on_host: bool) -> npt.NDArray[np.float32]:
    """The `number` highest probabilities of each row, descending, without their ids.

    On a CPU a partition is faster than a sort; a GPU sends only these to the host.
    """
    least = max(0, probabilities.shape[1] - number)
    if on_host:
        every = probabilities.numpy()
        return np.sort(np.partition(every, least, axis=1)[:, least:] if least else every, axis=1)[:, ::-1]
    highest: npt.NDArray[np.float32] = probabilities.topk(probabilities.shape[1] - least, dim=1).values.cpu().numpy()
    return highest


def _index(cumulative: Floats, total: Floats, uniforms: Floats) -> npt.NDArray[np.int64]:
    """For each row, the first index whose cumulative probability exceeds `uniforms * total`."""
    # Rounding may give the total itself, which none exceeds.
    share = np.minimum(uniforms * total, np.nextafter(total, 0))
    index: npt.NDArray[np.int64] = (cumulative <= share[:, None]).sum(axis=1)
    return index


DECIMALS = 3
"""Decimals of a log-probability. Further ones are mostly float32 rounding."""


def log_probabilities(logits: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """The rounded log-probability (natural) of each row's token; logits: (rows, vocabulary).

    It is the model's own, at temperature 1 and over all tokens, however the token was drawn.
    """
    drawn = torch.tensor(tokens, device=logits.device)[:, None]
    of_drawn = torch.log_softmax(logits.float(), dim=-1).gather(1, drawn)[:, 0]
    return [round(value, DECIMALS) + 0.0 for value in of_drawn.tolist()]  # + 0.0: no -0.0


PROBE_ROWS = ((3, 1, 2, 2), (1, 2, 3, 1, 2, 3))
"""Token ids of two rows for the trial in `require_rows`."""

MASKED = torch.finfo(torch.float32).min


def require_rows(model: PreTrainedModel, length: int) -> None:
    """Raise UserError if `BatchedRows` of `length` positions does not reproduce the model's logits."""
    if not (length <= attention_window(model) and _can_be_batched(model)):
        raise UserError(
            f"{type(model).__name__}: this architecture cannot generate texts in batches here; to generate none, set "
            "generate.headers.count to 0 and generate.problems.sets to []"
        )


def _can_be_batched(model: PreTrainedModel) -> bool:
    try:
        rows = BatchedRows(model, 2, max(map(len, PROBE_ROWS)))
        for row, ids in enumerate(PROBE_ROWS):
            rows.read(row, list(ids[:-2]))
        for position in (-2, -1):
            rows.step({row: ids[position] for row, ids in enumerate(PROBE_ROWS)})
        alone = [model(input_ids=_tensor(model, list(ids))).logits[0, -1].float() for ids in PROBE_ROWS]
    except Exception:  # other kinds of models may fail anywhere
        return False
    return all(
        torch.allclose(rows.logits[row], logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max()))
        for row, logits in enumerate(alone)
    )


def attention_window(model: PreTrainedModel) -> float:
    """The number of positions that every layer sees; infinite if all layers see all positions.

    The mask given to the model replaces the windows of its layers, so rows must not be longer than these.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if kinds and {*kinds} <= {"full_attention", "global"}:
        return math.inf
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size")]
    return min((size for size in sizes if size), default=math.inf)


class BatchedRows:
    """A batch of rows with a cache of fixed shape, for models that take `position_ids` and a 4-dimensional mask."""

    def __init__(self, model: PreTrainedModel, width: int, length: int) -> None:
        self.model, self.width, self.length = model, width, length
        self.positions = torch.zeros(width, dtype=torch.int64, device=model.device)
        """The position of each row's next token."""
        self.mask = torch.full((width, 1, 1, length), MASKED, device=model.device)
        """Added to the attention scores."""
        self.mask[..., 0] = 0  # so that the softmax of idle rows is defined
        self.all = torch.arange(width, device=model.device)
        self.cache: Cache | None = None
        self.prompt: tuple[list[int], Any] | None = None
        """The last prompt with the model's output, which rows with the same prompt share."""

    def read(self, row: int, ids: list[int]) -> None:
        """Start a row with these tokens, at most `length`."""
        if self.prompt is None or self.prompt[0] != ids:
            self.prompt = (ids, _read_alone(self.model, ids))
        output = self.prompt[1]
        if self.cache is None:
            self.layers = [_RowsLayer(layer, self) for layer in output.past_key_values.layers]
            self.cache = Cache(layers=list(self.layers))
            self.logits = output.logits.new_zeros(self.width, output.logits.shape[-1], dtype=torch.float32)
        for target, source in zip(self.layers, output.past_key_values.layers, strict=True):
            target.keys[row, :, : len(ids)] = source.keys[0]
            target.values[row, :, : len(ids)] = source.values[0]
        self.positions[row] = len(ids)
        self.mask[row, ..., : len(ids)] = 0
        self.mask[row, ..., len(ids) :] = MASKED
        self.logits[row] = output.logits[0, -1]

    def step(self, tokens: dict[int, int]) -> None:
        """Append a token to each of these rows; computing the other rows has no effect."""
        # The copy from pinned memory does not block the host.
        sent = torch.tensor([[*tokens], [*tokens.values()]], pin_memory=self.model.device.type == "cuda")
        fed, drawn = sent.to(self.model.device, non_blocking=True)
        inputs = torch.zeros(self.width, 1, dtype=torch.int64, device=self.model.device)
        inputs[fed, 0] = drawn
        self.mask[fed, 0, 0, self.positions[fed]] = 0
        # Idle rows write too, at their next position, which in a full row is past the end.
        self.writes = self.positions.clamp(max=self.length - 1)
        output = self.model(
            input_ids=inputs,
            position_ids=self.writes[:, None],
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.positions[fed] += 1
        self.logits[fed] = output.logits[fed, -1].float()


class _RowsLayer(CacheLayerMixin):
    """The keys and values of one layer; (width, heads, length, head size)."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, like: Any, rows: BatchedRows) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        _, heads, _, key_size = like.keys.shape
        self.rows = rows
        self.keys = like.keys.new_zeros(rows.width, heads, rows.length, key_size)
        self.values = like.values.new_zeros(rows.width, heads, rows.length, like.values.shape[-1])
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing: the constructor allocates."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write each row's new token at its own position."""
        self.keys[self.rows.all, :, self.rows.writes] = key_states[:, :, 0]
        self.values[self.rows.all, :, self.rows.writes] = value_states[:, :, 0]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All positions, from 0."""
        return self.rows.length, 0

    def get_seq_length(self) -> int:
        """The offset of computed positions; unused, as positions are given."""
        return 0

    def get_max_length(self) -> int:
        """The number of positions."""
        return self.rows.length


def _read_alone(model: PreTrainedModel, ids: list[int]) -> Any:
    # Without the model's config the cache keeps all positions, even for layers with a window.
    return model(input_ids=_tensor(model, ids), past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1)


def _tensor(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return torch.tensor([ids], device=model.device)


End: TypeAlias = Callable[[str], int | None]
"""Called with a text after each new piece; returns the index at which to cut it, or None while it has not ended."""


def stop_at(strings: Sequence[str]) -> End:
    """Ends a text before the earliest of these strings."""
    return lambda text: min((index for string in strings if (index := text.find(string)) >= 0), default=None)


def after(beginning: str, end: End) -> End:
    """Like `end`, but skips `beginning` if the text starts with it; None until that is known."""

    def cut(text: str) -> int | None:
        if len(text) < len(beginning) and beginning.startswith(text):
            return None
        skipped = len(beginning) if text.startswith(beginning) else 0
        index = end(text[skipped:])
        return None if index is None else skipped + index

    return cut
