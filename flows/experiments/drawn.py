"""Axes whose levels are drawn by optuna.

    axes:
      rate:
        draw: 24
        by: tpe
        metric: loss
        space: {train.optimizer.adamw_learning_rate: {low: 0.001, high: 0.03, log: true}}

Recorded levels stay, even if another seed or another version of optuna would draw other ones. New levels follow from
the seed; TPE's also follow from the recorded results, which each read replays into a new study in their order.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from flows.experiments.experiment import Overrides
from stages.runtime.errors import UserError
from stages.runtime.section import Section, value_at

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Value = str | int | float

DRAWN_DIGITS = 3
"""Drawn numbers are rounded to these: enough for their effect, and equal on machines whose last bits differ."""

STARTUP_LEVELS = 5
"""The levels that TPE draws at random before it learns from results."""

MAX_REPEATS = 100
"""After this many draws in a row that repeat a level, the space counts as exhausted."""


class Dimension(Section):
    """One drawn value: a number between two bounds, or one of several choices."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Equal ratios, instead of equal differences, are equally likely."""
    integer: bool = False
    choices: Annotated[list[Value], Field(min_length=1)] | None = None
    """Values of the key, or choices of a group of conf/."""

    @model_validator(mode="after")
    def _is_range_or_choices(self) -> "Dimension":
        if self.choices is not None:
            if self.model_fields_set != {"choices"}:
                raise ValueError("give either `choices` or `low` and `high`")
        elif self.low is None or self.high is None or self.low >= self.high:
            raise ValueError("give `choices`, or `low` and a larger `high`")
        elif self.log and self.low <= 0:
            raise ValueError("`log` needs a `low` above 0")
        elif self.integer and (self.low % 1 or self.high % 1):
            raise ValueError("with `integer`, `low` and `high` are whole numbers")
        return self

    @property
    def distribution(self) -> "BaseDistribution":
        """The same in optuna's terms."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices is not None:
            return CategoricalDistribution(self.choices)
        assert self.low is not None
        assert self.high is not None
        if self.integer:
            return IntDistribution(int(self.low), int(self.high), self.log)
        return FloatDistribution(self.low, self.high, self.log)

    def allows(self, value: Any) -> bool:
        """Whether the value can have been drawn."""
        if self.low is None or self.high is None:
            return value in (self.choices or ())
        return isinstance(value, int | float) and self.low <= value <= self.high

    def rounded(self, value: Value) -> Value:
        """The value written into params.yaml, within the bounds."""
        if self.low is None or self.high is None or self.integer:
            return value
        return min(max(float(f"{value:.{DRAWN_DIGITS}g}"), self.low), self.high)


class Draw(Section):
    """An axis whose levels are drawn."""

    draw: Annotated[int, Field(ge=1)]
    """The number of levels."""
    by: Literal["random", "tpe"] = "random"
    """TPE learns from results, so it runs one level after another (Bergstra et al. 2011)."""
    space: Annotated[dict[str, Dimension], Field(min_length=1)]
    """Dotted keys of params.yaml, or groups of conf/ with `choices`."""
    seed: Annotated[int, Field(ge=0)] = 0
    metric: str | None = None
    """The metric whose mean over all runs of a level TPE improves."""
    better: Literal["lower", "higher"] = "lower"

    @model_validator(mode="after")
    def _tpe_has_a_metric(self) -> "Draw":
        if (self.by == "tpe") != (self.metric is not None):
            raise ValueError("`by: tpe` needs `metric`, and `by: random` has none")
        return self

    def levels_in(self, params: Mapping[str, Any]) -> Iterator[Overrides]:
        """Levels that a run with these parameters may have had; any choice of a group of conf/ is possible."""
        values = (
            [
                value
                for value in ([value_at(params, key)] if "." in key else dimension.choices or ())
                if dimension.allows(value)
            ]
            for key, dimension in self.space.items()
        )
        for level in itertools.product(*values):
            yield dict(zip(self.space, level, strict=True))


NOT_ALL_ENDED: Literal["not all ended"] = "not all ended"

LevelResult = float | Literal["not all ended"] | None
"""The value that TPE minimizes at a level; None if one of its runs failed."""


def label_of(level: Overrides) -> str:
    """The name of a drawn level."""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in level.items())


def levels_of(
    draw: Draw, recorded: Mapping[str, Overrides], result_of: Callable[[str, Overrides], LevelResult]
) -> dict[str, Overrides]:
    """The levels of a drawn axis; with TPE those whose runs have ended, and the next one.

    `recorded` levels come first with TPE, and else take the place of levels that are not recorded.

    Raises UserError if optuna is not installed.
    """
    try:
        import optuna  # here: most experiments draw nothing, and the import is slow
    except ImportError:
        raise UserError("an axis with `draw` needs optuna: pip install -e '.[search]'") from None

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    space = {key: dimension.distribution for key, dimension in draw.space.items()}
    for level in recorded.values() if draw.by == "tpe" else ():
        study.enqueue_trial(level)
    levels: dict[str, Overrides] = {}
    repeats = 0
    while len(levels) < draw.draw and repeats < MAX_REPEATS:
        # A sampler for each draw: what it proposes depends on nothing but the seed and the trials before it.
        seed = draw.seed * 1_000_003 + len(study.trials)
        study.sampler = (
            optuna.samplers.TPESampler(n_startup_trials=STARTUP_LEVELS, multivariate=True, seed=seed)
            if draw.by == "tpe" and not repeats
            else optuna.samplers.RandomSampler(seed=seed)
        )
        trial = study.ask(space)
        level = {key: draw.space[key].rounded(value) for key, value in trial.params.items()}
        label = label_of(level)
        if label in levels:
            repeats += 1
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        repeats, levels[label] = 0, level
        value = result_of(label, level) if draw.by == "tpe" else None
        if value == NOT_ALL_ENDED:
            break
        study.tell(trial, value, state=optuna.trial.TrialState.FAIL if value is None else None)
    others = iter([item for item in recorded.items() if item[0] not in levels])
    return dict(item if item[0] in recorded else next(others, item) for item in levels.items())
