"""What `generate` would refuse after the training is refused before it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.evaluate.generate.check import main
from stages.runtime.errors import UserError
from tests.small_project import SECTIONS, changed

BLOOM = {"model_type": "bloom", "hidden_size": 16, "n_layer": 2, "n_head": 2}
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def check(folder: Path, model: dict[str, Any], **asked: Any) -> None:
    sections = {"generate": changed(SECTIONS["generate"], **asked), "train": SECTIONS["train"] | {"model": model}}
    (folder / "params.yaml").write_text(yaml.safe_dump(sections), encoding="utf-8")
    main()


def test_a_model_that_cannot_be_continued_in_batches_is_refused_unless_nothing_is_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    windows = {"model_type": "mistral", "num_key_value_heads": 1, "sliding_window": 2, **SMALL}
    for model in (BLOOM, windows):
        with pytest.raises(UserError, match="cannot generate texts in batches here; to generate none"):
            check(tmp_path, model)

    check(tmp_path, BLOOM, headers__count=0, problems__sets=[])
    check(tmp_path, windows | {"sliding_window": 512})
    check(tmp_path, {"model_type": "olmo2", **SMALL})
    check(tmp_path, {"model_type": "gpt2", "n_embd": "refused by the check of train"})
    check(tmp_path, {"model_type": "nonesuch"})
