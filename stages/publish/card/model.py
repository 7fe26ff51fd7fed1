"""The card's account of the model: its architecture, and how to load it, this revision and the exported steps."""

import json
from collections.abc import Iterator
from typing import Any

from stages.formats.markdown import table
from stages.formats.revision.layout import RUNS, run_name, step_name
from stages.publish.card.values import shown
from stages.publish.inputs import Inputs
from stages.publish.params import PublishParams

PROMPT_CHARACTERS = 60
"""At most, of a held-out document."""

ARCHITECTURE = {
    "architecture": ("architectures", "model_type"),
    "layers": ("n_layer", "num_hidden_layers", "num_layers"),
    "width": ("n_embd", "hidden_size", "d_model"),
    "attention heads": ("n_head", "num_attention_heads", "num_heads"),
    "key-value heads": ("num_key_value_heads",),
    "width of the feed-forward layers": ("n_inner", "intermediate_size", "ffn_dim"),
    "activation": ("activation_function", "hidden_act"),
    "context (tokens)": ("n_positions", "max_position_embeddings"),
    "vocabulary (tokens)": ("vocab_size",),
    "input and output embeddings shared": ("tie_word_embeddings",),
    "dtype of the weights": ("dtype", "torch_dtype"),
}
"""What a reader looks for -> its names in the configurations of transformers."""


def architecture(inputs: Inputs) -> str:
    """A table of the sizes."""
    rows = [("parameters", shown(inputs.training["parameters"])), *sizes(inputs.config)]
    return f"## Architecture\n\n{table(('', ''), rows)}\nThe whole configuration: `config.json`.\n"


def sizes(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the configuration says of them; what it leaves to the architecture's default is left out."""
    for title, names in ARCHITECTURE.items():
        values = (config[name] for name in names if config.get(name) is not None)
        if (value := next(values, None)) is not None:
            yield title, str(value) if isinstance(value, int) and not isinstance(value, bool) else shown(value)


def loading(params: PublishParams, inputs: Inputs) -> str:
    """Code that runs wherever the reader is."""
    text = example_prompt(params, inputs)
    prompt = json.dumps(text, ensure_ascii=False) if text else "tokenizer.eos_token"
    name = "." if params.repository is None else params.repository
    comment = "  # the path of the folder that holds this card" if params.repository is None else ""
    return f"""## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

name = {json.dumps(name)}{comment}
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)
prompt = tokenizer({prompt}, return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=100, do_sample=True)[0]))
```

{revisions(params)}{exported_steps(params, inputs)}"""


def example_prompt(params: PublishParams, inputs: Inputs) -> str:
    """The publisher's, else the first line of a held-out document; empty where there is neither."""
    lines = (line for sample in inputs.samples for line in sample.signature.splitlines() if line.strip())
    return params.prompt or next(lines, "")[:PROMPT_CHARACTERS].strip()


def revisions(params: PublishParams) -> str:
    """How to load a revision that stays as it is."""
    if params.repository is None:
        return (
            "Each folder in `revisions/` is a revision, which never changes, and loads by its path: "
            '`from_pretrained("PATH/revisions/REVISION")`. `parrotflow published path REVISION` prints it. The link '
            "`main` leads to one of them, and moves.\n"
        )
    return (
        'Each tag of the repository is a revision: `from_pretrained(name, revision="TAG")` loads it. A tag never '
        "moves; `main` does.\n"
    )


def exported_steps(params: PublishParams, inputs: Inputs) -> str:
    """How to load the model as it was after some steps; nothing where none was exported."""
    if not inputs.steps or inputs.execution is None:
        return ""  # without a record of the execution it is not known which run they belong to
    numbers, first = ", ".join(f"{step:,}" for step in inputs.steps), step_name(inputs.steps[0])
    if params.repository is not None:
        return (
            f'\nThe model after {numbers} steps: `from_pretrained(name, revision="TAG-{first}")` for the first of '
            "them, with a revision's tag for TAG.\n"
        )
    run = run_name(inputs.execution.fingerprint)
    return (
        f"\nThe model after {numbers} steps is next to `revisions/`, with its tokenizer: "
        f'`from_pretrained("PATH/{RUNS}/{run}/{first}")` loads the first of them.\n'
    )
