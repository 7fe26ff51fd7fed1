"""The tokenizer's folder, as transformers saves it: `AutoTokenizer.from_pretrained` loads it."""

from pathlib import Path

TOKENIZER = Path("data/tokenizer")

TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
