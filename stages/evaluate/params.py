"""The section `evaluate` of params.yaml."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from stages.formats.model_folder import MODEL
from stages.formats.tokens import VALIDATION
from stages.runtime.hub import ModelName
from stages.runtime.section import FileName, Section, value_at

SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
"""The name of a held-out set, which becomes a key of metrics and a file name."""


class EvaluateParams(Section):
    """The section `evaluate` of params.yaml."""

    context_length: Annotated[int, Field(ge=2)] | None
    """Tokens in a window. Null: the number of the model's positions."""
    stride: Annotated[int, Field(ge=1)] | None
    """Tokens by which a window advances. Null: three quarters of the window. A smaller stride gives tokens more context
    and a lower loss, and takes more time (context_length / stride times a single pass)."""
    sets: dict[SetName, FileName]
    """Further held-out sets by name: a file or a folder of documents, read as in `collect`. A row has `text`, and may
    have `source` and `path`."""
    answers: dict[SetName, FileName]
    """Further sets by name, of which only the answers are scored, each given its prompt: files of rows with `prompt`
    and `completion`, or of code problems in HumanEval's or MBPP's format, whose solutions are the answers."""
    baselines: list[ModelName]
    """Models to score on the same documents, each with its own tokenizer: folders, or commits on the Hub
    (owner/name@COMMIT)."""

    def check(self, others: Mapping[str, Any]) -> Iterator[str]:
        """Check that names are unique, and that windows fit a new model's positions and skip no text."""
        for name in (VALIDATION,) if VALIDATION in {**self.sets, **self.answers} else ():
            yield f"evaluate.sets.{name}: this name belongs to the split that cleaning holds out; choose another"
        for name in sorted(self.sets.keys() & self.answers.keys()):
            yield f"evaluate.answers.{name}: evaluate.sets has this name already; choose another"
        for name in sorted({name for name in self.baselines if self.baselines.count(name) > 1}):
            yield f"evaluate.baselines: {name} is listed twice"
        if str(MODEL) in self.baselines:
            yield f"evaluate.baselines: {MODEL}: the report uses this name; write ./{MODEL}"
        fields = (value_at(others, "train.model") if value_at(others, "train.start_from") is None else None) or {}
        limit = fields.get("max_position_embeddings", fields.get("n_positions"))
        context = self.context_length or limit
        if self.context_length and limit and self.context_length > limit:
            yield f"evaluate.context_length = {self.context_length}: train.model has {limit} positions; lower it"
        elif self.stride and context and self.stride > context:
            yield f"evaluate.stride = {self.stride}: more than the context of {context} tokens skips text; lower it"
