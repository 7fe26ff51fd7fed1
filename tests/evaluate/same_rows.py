"""Prints for two models the places among 48 rows at which a row's logits have other bits than where it is alone."""

import random

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel

from stages.evaluate.rows import BatchedRows
from stages.evaluate.side_by_side import cores_each

WIDTH = 48

# As wide as gpt2_mini, where matrix products are cut into blocks; and of sizes that leave incomplete ones.
MODELS = {
    "gpt2": GPT2Config(vocab_size=4096, n_positions=256, n_embd=256, n_layer=2, n_head=4),
    "llama": LlamaConfig(
        vocab_size=5000,
        hidden_size=192,
        intermediate_size=500,
        num_hidden_layers=1,
        num_attention_heads=6,
        num_key_value_heads=2,
    ),
}


@torch.inference_mode()
def logits(model: PreTrainedModel, place: int, others: int) -> torch.Tensor:
    """Those of one text, continued by three tokens at a place among the rows, beside this many others."""
    rows = BatchedRows(model, WIDTH, 128)
    generator = random.Random(place + others)
    for other in generator.sample([number for number in range(WIDTH) if number != place], others):
        rows.read(other, [generator.randrange(4096) for _ in range(generator.randint(1, 90))])
    rows.read(place, [5, 17, 300, 4000, 2, 9])
    seen = [rows.logits[place].clone()]
    for token in (7, 8, 9):
        rows.step({number: generator.randrange(4096) for number in range(WIDTH)} | {place: token})
        seen.append(rows.logits[place].clone())
    return torch.stack(seen)


if __name__ == "__main__":
    for name, config in MODELS.items():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        with cores_each(1):
            alone = logits(model, 0, others=0)
            company = dict.fromkeys(range(WIDTH), 3) | {0: WIDTH - 1, 13: WIDTH - 1, WIDTH - 1: WIDTH - 1}
            differ = [place for place, others in company.items() if not alone.equal(logits(model, place, others))]
        print(f"{name}: {sorted(differ)}")
