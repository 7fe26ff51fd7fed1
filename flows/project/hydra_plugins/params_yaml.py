"""params.yaml as `dvc exp run` composes it: with its comments, its text as it is, and checked before anything runs.

Hydra loads this module for DVC (.dvc/config: hydra.plugins_path), and for nothing else. DVC replaces params.yaml by
what `OmegaConf.to_yaml` gives for the composed values: unchecked, without comments, and after `OmegaConf.resolve` has
replaced each `${...}` in its texts. It has no setting for any of these.
"""

from typing import Any, cast

from dvc.exceptions import InvalidArgumentError
from omegaconf import OmegaConf

from flows.project.compose import TEXT_OF_BASE, text_with, with_text
from stages.runtime.entry import UserError
from stages.runtime.section import flatten, read_params_file

_resolve = OmegaConf.resolve


def resolve_presets(composed: Any) -> None:
    """Replace each `${...}` that a preset or a word of the command has, and none in the text of params.yaml."""
    raw = flatten(cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False)))
    for key, value in flatten(read_params_file()).items():
        if (kept := with_text(value, "${", TEXT_OF_BASE)) != value and raw.get(key) == value:
            OmegaConf.update(composed, key, kept)
    _resolve(composed)


def params_text(composed: Any, **_: object) -> str:
    """The text of params.yaml with the composed values. What a stage would refuse ends DVC's command."""
    values = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
    try:
        return text_with(with_text(values, TEXT_OF_BASE, "${"))
    except UserError as error:
        raise InvalidArgumentError(str(error)) from None


OmegaConf.resolve = resolve_presets  # type: ignore[method-assign, assignment]
OmegaConf.to_yaml = params_text  # type: ignore[method-assign, assignment]
