import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    pipeline,
)

from stages.evaluate.generate.generator import GenerationRequest, _Row, _stream_after, generate, prompt_tokens, stream
from stages.evaluate.generate.params import Sampling
from stages.evaluate.generate.rows import DECIMALS, after, stop_at
from stages.evaluate.model import open_model, open_tokenizer
from stages.runtime.errors import UserError

FREELY = Sampling(temperature=1.0, top_p=0.9, max_new_tokens=40)
GREEDILY = Sampling(temperature=0, top_p=1.0, max_new_tokens=40)


@pytest.fixture
def tokenizer(project: Path) -> PreTrainedTokenizerFast:
    return open_tokenizer(project / "model")


@pytest.fixture
def model(project: Path) -> PreTrainedModel:
    """One that prefers some tokens to others."""
    opened = open_model(project / "model")
    torch.manual_seed(0)
    torch.nn.init.normal_(next(opened.get_input_embeddings().parameters()), std=0.4)
    return opened


def requests(count: int, sampling: Sampling = FREELY) -> list[GenerationRequest]:
    """Prompts of several lengths, some longer than the model's positions, some shared, each with a seed of its own."""
    return [
        GenerationRequest("def f(" + "x, " * (7 * (number // 3 % 5)), number, stop_at(["\n\n", "zz"]), sampling)
        for number in range(count)
    ]


def test_the_same_requests_give_the_same_texts_each_by_its_own_seed_and_settings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    short = Sampling(temperature=0.5, top_p=1.0, max_new_tokens=7)
    each = [requests(12, sampling) for sampling in (FREELY, GREEDILY, short)]
    asked = [request for three in zip(*each, strict=True) for request in three]

    texts = sorted(generate(model, tokenizer, asked, width=8), key=lambda one: one.request)

    assert texts == sorted(generate(model, tokenizer, asked, width=8), key=lambda one: one.request)
    assert [one.request for one in texts] == list(range(36))
    assert max(len(one.ids) for one in texts[2::3]) == 7
    assert len({tuple(one.ids) for one in texts[::3]}) > 10  # of few prompts: the seeds tell them apart


def test_the_cache_changes_nothing_and_positions_that_run_out_go_on_from_the_later_half(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompts = ["def f(", "x = 1\n" * 3, "y"]
    long = Sampling(temperature=0, top_p=1.0, max_new_tokens=60)
    asked = [GenerationRequest(prompt, 0, stop_at(()), long) for prompt in prompts]

    for one in generate(model, tokenizer, asked, width=4):
        read, expected, likelihoods = prompt_tokens(tokenizer, prompts[one.request]), [], []
        for _ in one.ids:
            if len(read) > 32:
                read = read[-16:]
            with torch.inference_mode():
                own = torch.log_softmax(model(torch.tensor([read])).logits[0, -1], dim=-1)
            expected.append(int(own.argmax()))
            likelihoods.append(float(own.max()))
            read = [*read, expected[-1]]
        assert one.ids == expected
        assert len(one.ids) == 60
        assert one.log_probabilities == pytest.approx(likelihoods, abs=10**-DECIMALS)
        assert "".join(one.pieces) == one.text


SMALL = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ONE_HEAD = {"intermediate_size": 32, "num_key_value_heads": 1}


@pytest.mark.parametrize(
    "other",
    [
        GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=64, n_embd=16, n_layer=2, n_head=2)),
        LlamaForCausalLM(LlamaConfig(**SMALL, **ONE_HEAD)),
        GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, intermediate_size=32)),
        MistralForCausalLM(MistralConfig(**SMALL, **ONE_HEAD, sliding_window=64)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rows_in_a_batch_are_continued_as_the_model_continues_each_alone(
    other: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    other.eval()
    torch.manual_seed(0)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    asked = requests(5, Sampling(temperature=0, top_p=1.0, max_new_tokens=8))

    for one in generate(other, tokenizer, asked, width=4):
        read = prompt_tokens(tokenizer, asked[one.request].prompt)
        assert len(one.ids) > 1
        for token in one.ids[:2]:
            with torch.inference_mode():
                assert token == int(other(torch.tensor([read])).logits[0, -1].argmax())
            read.append(token)


@pytest.mark.parametrize(
    "other",
    [
        # Its first layer keeps a convolution's state and no keys.
        Lfm2ForCausalLM(Lfm2Config(**SMALL, **ONE_HEAD, layer_types=["conv", "full_attention"])),
        # Its positions follow from a mask of two dimensions.
        BloomForCausalLM(BloomConfig(vocab_size=300, hidden_size=16, n_layer=2, n_head=2)),
        # Its layers see fewer positions than the texts have.
        MistralForCausalLM(MistralConfig(**SMALL, **ONE_HEAD, sliding_window=16)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_that_cannot_be_continued_in_batches_is_refused_with_what_to_do(
    other: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(UserError, match=r"cannot generate texts in batches .* set generate\.headers\.count to 0"):
        list(generate(other.eval(), tokenizer, requests(3), width=4))


@pytest.mark.parametrize(
    ("text", "eos", "expected", "ended"),
    [
        ("return 1\nprint(2)\n", False, "return 1", "stop"),
        ("return 1\nprint", True, "return 1", "stop"),
        ("return 1\nprin", True, "return 1\nprin", "eos"),
        ("\nprint", True, "", "stop"),
        ("a = 'é…'\n\n\nprint(1)", False, "a = 'é…'\n\n", "stop"),
        ("x = 1\nclass A:\nprint()", False, "x = 1", "stop"),
        ("", True, "", "eos"),
        ("y" * 100, False, "y" * 40, "length"),
    ],
)
def test_a_text_is_cut_before_a_stop_string_wherever_tokens_end(
    tokenizer: PreTrainedTokenizerFast, text: str, eos: bool, expected: str, ended: str
) -> None:
    request = GenerationRequest("x", 0, stop_at(["\nprint", "\nclass"]), GREEDILY)
    characters = [encode(tokenizer, character) for character in text]
    for ids in (encode(tokenizer, text), list(itertools.chain.from_iterable(characters))):
        row = _Row(0, request, [], np.zeros(40), _stream_after(encode(tokenizer, "x"), tokenizer), request.end)
        taken = (row.take(token, 0.0, tokenizer) for token in [*ids, *([tokenizer.eos_token_id] if eos else [])])

        assert next(filter(None, taken)) == ended
        if ended != "length":
            assert row.text == expected


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def test_the_earliest_stop_string_counts_where_one_token_completes_several() -> None:
    assert stop_at(["b", "ab"])("xab") == 1
    assert stop_at(["a"])("xyz") is None
    assert stop_at([])("x") is None


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("\n", None),  # it may still become the white space that the prompt ended with
        ("\n    x = 1", None),
        ("\n    x = 1\ndef g", 10),
        ("\n    \ndef g", 5),
        ("\ndef g", 0),
        (" # a\ndef g", 4),
    ],
)
def test_the_white_space_that_the_prompt_ended_with_ends_no_text(text: str, cut: int | None) -> None:
    assert after("\n    ", stop_at(["\ndef", "\n\n"]))(text) == cut


def test_a_terminal_gets_the_same_text_piece_by_piece(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    with torch.inference_mode():  # toward ASCII: bytes that are no character are held back
        model.get_input_embeddings().weight[1:95] *= 2
    pieces = list(stream(model, tokenizer, "def f(", FREELY, seed=3))
    (whole,) = generate(model, tokenizer, [GenerationRequest("def f(", 3, stop_at(()), FREELY)], width=1)

    assert len(pieces) > 5
    assert "".join(pieces) == whole.text
    assert "".join(stream(model, tokenizer, "def f(", FREELY, seed=4)) != whole.text


def test_an_id_that_the_tokenizer_does_not_know_is_never_drawn(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    padded = GPT2LMHeadModel(GPT2Config(vocab_size=3000, n_positions=64, n_embd=16, n_layer=1, n_head=2)).eval()

    drawn = [id for one in generate(padded, tokenizer, requests(8), width=8) for id in one.ids]

    assert len(drawn) > 100
    assert max(drawn) < len(tokenizer)


def test_a_text_ends_though_the_tokenizer_leaves_out_ids_before_that_of_its_end() -> None:
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    with_gap = Tokenizer(models.BPE(vocab={**letters, "<end>": 299}, merges=[]))
    with_gap.pre_tokenizer, with_gap.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=64, n_embd=16, n_layer=1, n_head=2)).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=with_gap, eos_token="<end>")
    freely = Sampling(temperature=1.0, top_p=1.0, max_new_tokens=200)

    written = list(generate(model, tokenizer, requests(32, freely), width=32))

    assert any(one.ids[-1] == 299 for one in written)


def test_a_text_continues_a_prompt_with_the_space_that_its_tokenizer_writes(model: PreTrainedModel) -> None:
    words = {"<end>": 0, "▁a": 1, "▁b": 2}
    backend = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()  # of the first word of a text it leaves out the space
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")

    (one,) = generate(model, tokenizer, [GenerationRequest("a", 0, stop_at(()), FREELY)], width=1)

    assert one.ids
    assert one.text == "".join(f" {'.ab'[id]}" for id in one.ids if id)


def test_a_model_that_reads_what_it_is_to_predict_is_refused(project: Path, tmp_path: Path) -> None:
    size = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertConfig(**size, intermediate_size=16, is_decoder=False)
    BertLMHeadModel(bert).save_pretrained(tmp_path / "bert")

    with pytest.raises(UserError, match="bert: not a causal language model: what it predicts depends on later"):
        open_model(tmp_path / "bert")


def test_transformers_pipeline_continues_prompts_in_a_batch_as_we_do(
    project: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompts = ["def add(a, b):", "x", "import os\n\n\ndef path"]
    short = Sampling(temperature=0, top_p=1.0, max_new_tokens=6)
    asked = [GenerationRequest(prompt, 0, stop_at(()), short) for prompt in prompts]
    write = pipeline("text-generation", model=str(project / "model"), device="cpu")
    write.model.load_state_dict(model.state_dict())

    theirs = write(prompts, batch_size=3, max_new_tokens=6, do_sample=False, return_full_text=False)

    ours = {one.request: one.text for one in generate(model, tokenizer, asked, width=2)}
    assert [texts[0]["generated_text"] for texts in theirs] == [ours[number] for number in range(3)]
