"""params.yaml as `dvc exp run` composes it: with its comments, and checked before anything runs.

Hydra loads this module for DVC (.dvc/config: hydra.plugins_path), and for nothing else. DVC replaces params.yaml by
what `OmegaConf.to_yaml` gives for the composed values: unchecked, and without comments. It has no setting for either.
"""

from typing import Any, cast

from dvc.exceptions import InvalidArgumentError
from omegaconf import OmegaConf

from flows.project.compose import text_with
from stages.runtime.entry import UserError


def params_text(composed: Any, **_: object) -> str:
    """The text of params.yaml with the composed values. What a stage would refuse ends DVC's command."""
    values = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
    try:
        return text_with(values)
    except UserError as error:
        raise InvalidArgumentError(str(error)) from None


OmegaConf.to_yaml = params_text  # type: ignore[method-assign, assignment]
