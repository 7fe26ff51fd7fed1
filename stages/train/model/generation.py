"""Generation settings of a model that is continued: which of them the trained model can keep.

Many models on the Hub have a generation_config.json that transformers loads and then refuses to save (`temperature`
without `do_sample`), or that names ids and strings of a vocabulary that the tokens may not have.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

OF_A_VOCABULARY = {"forced_bos_token_id", "forced_eos_token_id", "forced_decoder_ids", "decoder_start_token_id"}
OF_A_VOCABULARY |= {"suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "force_words_ids", "sequence_bias"}
OF_A_VOCABULARY |= {"stop_strings", "watermarking_config"}

REPLACED = {"bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "_from_model_config"}
"""Settings that training sets itself."""

SWITCHES = ("do_sample", "num_beams", "num_return_sequences", "use_cache", "cache_implementation")
"""Settings on which others depend, tried first."""


def kept_settings(config: GenerationConfig) -> GenerationConfig:
    """Return the settings that transformers would save and that name no token."""
    kept: dict[str, Any] = {}
    given = {name: value for name, value in config.to_diff_dict().items() if name not in REPLACED | OF_A_VOCABULARY}
    for name in sorted(given, key=lambda name: (name not in SWITCHES, name)):
        with suppress(ValueError):
            GenerationConfig(**kept, **{name: given[name]}).validate(strict=True)
            kept[name] = given[name]
    return GenerationConfig(**kept)


def note_dropped_settings(source: Path) -> Iterator[str]:
    """Yield a line that names the settings of the model in `source` that are dropped."""
    with suppress(OSError, ValueError):  # a folder without such a file has none
        config = GenerationConfig.from_pretrained(source)
        dropped = sorted(config.to_diff_dict().keys() - kept_settings(config).to_diff_dict().keys() - REPLACED)
        if dropped:
            yield (
                f"note: train.start_from: generation_config.json: {', '.join(dropped)}: dropped, because transformers "
                "refuses to save them together or they name tokens of the model's own vocabulary"
            )
