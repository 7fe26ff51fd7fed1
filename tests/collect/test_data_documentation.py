import re

import pytest
import yaml

from stages.clean.params import CleanParams
from stages.collect.params import CollectParams
from stages.runtime.section import check_section
from tests.small_project import ROOT

MODELS = {"collect": CollectParams, "clean": CleanParams}
PAGE = (ROOT / "docs/how-to/data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = [block for block in BLOCKS if "cmd:" not in block]
"""Of params.yaml; the others are of dvc.yaml, which tests/in_parts/test_dvc_yaml.py runs."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_valid_section_of_params(example: str) -> None:
    for name, section in yaml.safe_load(example).items():
        assert check_section(name, section, MODELS[name])


def test_every_kind_of_source_is_on_the_page() -> None:
    source = CollectParams.model_json_schema()["properties"]["sources"]["items"]["discriminator"]["mapping"]

    assert (len(EXAMPLES), len(BLOCKS)) == (2, 3)
    assert [kind for kind in source if f"`{kind}`" not in PAGE] == []
