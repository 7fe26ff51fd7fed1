"""Checks that the model of params.yaml can generate in batches: `python -m stages.evaluate.generate.check`.

Otherwise `generate` would fail, after the training.
"""

from pathlib import Path

from stages.evaluate.generate.params import GenerateParams
from stages.runtime.section import read_params_file, read_section
from stages.runtime.stage import run_stage

TRIED = ("gpt2", "gpt_neox", "llama", "qwen3")
"""Architectures that the tests cover, which saves importing torch here."""

WINDOW_FIELDS = {"layer_types", "sliding_window", "use_sliding_window"}
"""Fields that limit the positions that a layer of these sees."""

MAX_TRIED_WEIGHTS = 500_000_000
"""Larger models take long to build, so they are left to the stage."""


def main() -> None:
    """Raise UserError if a model of this architecture with random weights cannot generate in batches."""
    params, train = read_section("generate", GenerateParams), read_params_file()["train"]
    asked = ((params.headers, params.headers.count), (params.problems, params.problems.sets))
    lengths = [part.max_new_tokens for part, texts in asked if texts]
    fields, source = train["model"], Path(train["start_from"] or "params.yaml")
    is_tried = fields.get("model_type") in TRIED and not WINDOW_FIELDS & fields.keys()
    if not lengths or is_tried or not (source.is_dir() or train["start_from"] is None):
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from stages.evaluate.generate.rows import require_rows

    try:
        config = AutoConfig.from_pretrained(source) if source.is_dir() else AutoConfig.for_model(**fields)
        config.vocab_size, config.pad_token_id = 64, None
        with torch.device("meta"):
            weights = AutoModelForCausalLM.from_config(config).num_parameters()
        model = AutoModelForCausalLM.from_config(config).eval() if weights <= MAX_TRIED_WEIGHTS else None
    except Exception:  # the check of `train` reports it
        return
    if model is not None:
        with torch.inference_mode():
            require_rows(model, min(max(lengths), train["sequence_length"]))


if __name__ == "__main__":
    run_stage(main)
