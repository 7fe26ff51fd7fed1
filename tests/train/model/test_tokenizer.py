"""The tokenizer of a model folder begins each text as training did, even if it began otherwise before."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from stages.formats.reports import read_json, write_json
from stages.train.model.tokenizer import write_tokenizer

VOCABULARY = {"<s>": 0, "</s>": 1, "bako": 2, "miter": 3}
CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}


def write_existing(folder: Path, config: dict[str, object], begins: bool) -> None:
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", config)


@pytest.mark.parametrize(
    ("config", "begins"),
    [
        (CONFIG, False),
        (CONFIG, True),
        (CONFIG | {"add_bos_token": True, "add_eos_token": True}, True),
        (CONFIG | {"eos_token": {"content": "</s>", "lstrip": False}, "pad_token": "<s>"}, True),
    ],
)
def test_a_text_begins_with_the_end_of_sequence_id_alone(
    tmp_path: Path, config: dict[str, object], begins: bool
) -> None:
    write_existing(tmp_path / "existing", config, begins)
    (tmp_path / "model").mkdir()
    before = (tmp_path / "existing/tokenizer.json").read_bytes()

    write_tokenizer(tmp_path / "model", 1, tmp_path / "existing")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer("bako miter").input_ids == [1, 2, 3]
    assert tokenizer("bako miter", add_special_tokens=False).input_ids == [2, 3]
    assert tokenizer(["bako", "bako miter"], padding=True).input_ids == [[1, 1, 2], [1, 2, 3]]
    assert (tmp_path / "existing/tokenizer.json").read_bytes() == before
    assert read_json(tmp_path / "model/tokenizer_config.json")["bos_token"] == "</s>"
