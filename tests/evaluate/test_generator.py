import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import current_thread
from types import SimpleNamespace
from typing import Any

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
    GPTNeoConfig,
    GPTNeoForCausalLM,
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
    Qwen3Config,
    Qwen3ForCausalLM,
)

from stages.evaluate import generator, side_by_side
from stages.evaluate.generate.params import Sampling
from stages.evaluate.generator import Generated, GenerationRequest, generate, prompt_tokens, stream
from stages.evaluate.model import open_model, open_tokenizer
from stages.evaluate.rows import DECIMALS, BatchedRows, SingleRows, after, bytes_per_position, draw, rows_of, stop_at
from stages.runtime.entry import UserError
from tests.small_project import ROOT

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


Written = tuple[str, str, list[int], list[float]]


def written(one: Generated) -> Written:
    return one.text, one.ended, one.ids, one.log_probabilities


def by_seed(asked: Sequence[GenerationRequest], texts: Iterator[Generated]) -> dict[int, Written]:
    return {asked[one.request].seed: written(one) for one in texts}


def test_a_text_does_not_depend_on_how_many_are_written_or_in_which_order(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    asked = requests(40)
    together = by_seed(asked, generate(model, tokenizer, asked, width=32))
    shuffled = random.Random(0).sample(asked, len(asked))

    assert len({tuple(ids) for _, _, ids, _ in together.values()}) > 35
    assert by_seed(shuffled, generate(model, tokenizer, shuffled, width=32)) == together
    for count in (1, 4):
        for first in range(0, 12, count):
            some = asked[first : first + count]
            assert by_seed(some, generate(model, tokenizer, some, width=32)).items() <= together.items()


def test_texts_of_other_settings_are_written_beside_it_and_change_nothing(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    settings = [FREELY, GREEDILY, Sampling(temperature=0.5, top_p=1.0, max_new_tokens=7)]
    each = [requests(12, sampling) for sampling in settings]
    alone = [by_seed(some, generate(model, tokenizer, some, width=8)) for some in each]
    mixed = [request for some in zip(*each, strict=True) for request in some]

    together = {one.request: written(one) for one in generate(model, tokenizer, mixed, width=8)}

    assert len(together) == 36
    for number, request in enumerate(mixed):
        assert together[number] == alone[number % 3][request.seed]
    assert max(len(ids) for _, _, ids, _ in alone[2].values()) == 7


def give_cores(monkeypatch: pytest.MonkeyPatch, cores: int, memory: int = 10**12) -> None:
    for module in (generator, side_by_side):
        monkeypatch.setattr(module, "cores_of", lambda _: cores)
    monkeypatch.setattr(side_by_side.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(side_by_side.psutil, "virtual_memory", lambda: SimpleNamespace(total=memory))


def test_a_text_does_not_depend_on_how_many_threads_write(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests(40)
    give_cores(monkeypatch, 1)
    alone = by_seed(asked, generate(model, tokenizer, asked, width=8))
    give_cores(monkeypatch, 3)
    written_by: set[str] = set()
    monkeypatch.setattr(generator, "draw", lambda *of: written_by.add(current_thread().name) or draw(*of))

    assert by_seed(asked, generate(model, tokenizer, asked, width=8)) == alone
    assert len(written_by) > 1


def test_cores_share_a_product_where_memory_has_no_room_for_the_rows_of_each(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, int]] = set()

    def drawn(*of: Any) -> list[int]:
        seen.add((current_thread().name, torch.get_num_threads()))
        return draw(*of)

    monkeypatch.setattr(generator, "draw", drawn)
    one = 8 * 32 * bytes_per_position(model)  # the rows of one thread, all positions
    for room, cores_each in ((4, 1), (2, 2), (1, 4), (0.1, 4)):
        give_cores(monkeypatch, 4, memory=int(room * one / side_by_side.MEMORY_SHARE))
        seen.clear()

        texts = list(generate(model, tokenizer, requests(40), width=8))

        assert len(texts) == 40
        assert {cores for _, cores in seen} == {cores_each}
        assert len(seen) <= 4 // cores_each


HELD_TO_AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
"""The libraries' own switches. They are read when torch is loaded, so what they change is tried in another process."""


@pytest.mark.xfail(
    not re.search("GenuineIntel|AuthenticAMD", Path("/proc/cpuinfo").read_text(encoding="utf-8")),
    reason="blocks of rows were looked at on Intel's and AMD's CPUs alone",
    strict=False,
)
@pytest.mark.parametrize("switches", [{}, HELD_TO_AVX2], ids=["as it is", "held to AVX2"])
def test_the_logits_of_a_row_are_the_same_bits_in_any_place_and_company(switches: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.evaluate.same_rows"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | switches, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["gpt2: []", "llama: []"]


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


def test_greedy_texts_are_those_of_transformers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    prompts = ["def f(", "x", "class A:\n"]
    short = Sampling(temperature=0, top_p=1.0, max_new_tokens=20)
    asked = [GenerationRequest(prompt, 0, stop_at(()), short) for prompt in prompts]

    texts = {one.request: one.ids for one in generate(model, tokenizer, asked, width=2)}

    for number, prompt in enumerate(prompts):
        ids = torch.tensor([prompt_tokens(tokenizer, prompt)])
        with torch.inference_mode():
            written = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
        assert written.tolist() == texts[number]


SMALL = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=64, n_embd=16, n_layer=2, n_head=2)), BatchedRows),
        (LlamaForCausalLM(LlamaConfig(**SMALL, intermediate_size=32, num_key_value_heads=1)), BatchedRows),
        (GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, intermediate_size=32)), BatchedRows),
        # Its first layer keeps a convolution's state and no keys.
        (
            Lfm2ForCausalLM(
                Lfm2Config(**SMALL, intermediate_size=32, num_key_value_heads=1, layer_types=["conv", "full_attention"])
            ),
            SingleRows,
        ),
        # Its positions follow from a mask of two dimensions.
        (BloomForCausalLM(BloomConfig(vocab_size=300, hidden_size=16, n_layer=2, n_head=2)), SingleRows),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PreTrainedModel) else "",
)
def test_any_causal_model_is_continued_and_those_that_cannot_be_batched_one_by_one(
    other: PreTrainedModel, expected: type, tokenizer: PreTrainedTokenizerFast
) -> None:
    other.eval()
    torch.manual_seed(0)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    asked = requests(5, Sampling(temperature=0, top_p=1.0, max_new_tokens=8))
    with torch.inference_mode():
        assert rows_of(other) is expected

    for one in generate(other, tokenizer, asked, width=4):
        read = prompt_tokens(tokenizer, asked[one.request].prompt)
        assert len(one.ids) > 1
        for token in one.ids[:2]:
            with torch.inference_mode():
                assert token == int(other(torch.tensor([read])).logits[0, -1].argmax())
            read.append(token)


@pytest.mark.parametrize(
    "limited",
    [
        MistralForCausalLM(MistralConfig(**SMALL, intermediate_size=32, num_key_value_heads=1, sliding_window=16)),
        Qwen3ForCausalLM(
            Qwen3Config(
                **SMALL, intermediate_size=32, num_key_value_heads=1, use_sliding_window=True, sliding_window=16,
                layer_types=["full_attention", "sliding_attention"],
            )
        ),
        GPTNeoForCausalLM(
            GPTNeoConfig(
                vocab_size=300, max_position_embeddings=128, hidden_size=16, num_layers=2, num_heads=2, window_size=16,
                attention_types=[[["global", "local"], 1]],
            )
        ),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_layers_that_see_only_the_last_tokens_see_no_more_of_them_here(
    limited: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    limited.eval()
    torch.manual_seed(0)
    for parameter in limited.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    asked = [GenerationRequest(prompt, 0, stop_at(()), GREEDILY) for prompt in ("def f(", "x, " * 12)]

    for one in generate(limited, tokenizer, asked, width=2):
        read = prompt_tokens(tokenizer, asked[one.request].prompt)
        for token in one.ids:
            with torch.inference_mode():
                assert token == int(limited(torch.tensor([read])).logits[0, -1].argmax())
            read.append(token)


class Spelled:
    """Stands for a model that writes given tokens, whatever it read: the text's end is under test, not the model."""

    def __init__(self, ids: list[int], size: int) -> None:
        self.ids, self.size = ids, size

    def rows(self, _: PreTrainedModel, width: int, __: int) -> "Spelled":
        self.logits = torch.zeros(width, self.size)
        self.at = [0] * width
        return self

    def read(self, row: int, _: list[int]) -> None:
        self.at[row] = 0
        self._set(row)

    def step(self, tokens: dict[int, int]) -> None:
        for row in tokens:
            self.at[row] += 1
            self._set(row)

    def _set(self, row: int) -> None:
        self.logits[row] = torch.nn.functional.one_hot(torch.tensor(self.ids[self.at[row]]), self.size)


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
    project: Path,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    eos: bool,
    expected: str,
    ended: str,
) -> None:
    characters = [encode(tokenizer, character) for character in text]
    spellings = [encode(tokenizer, text), list(itertools.chain.from_iterable(characters))]
    for ids in spellings:
        model = open_model(project / "model")
        written = Spelled([*ids, *([tokenizer.eos_token_id] if eos else [])], len(tokenizer))
        monkeypatch.setattr("stages.evaluate.generator.rows_of", lambda _, written=written: written.rows)
        request = GenerationRequest("x", 0, stop_at(["\nprint", "\nclass"]), GREEDILY)
        (one,) = generate(model, tokenizer, [request], width=1)

        assert one.ended == ended
        if ended != "length":
            assert one.text == expected


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
    with torch.inference_mode():  # towards ASCII: bytes that are no character are held back
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


def test_the_name_of_a_special_token_in_a_prompt_is_text(tokenizer: PreTrainedTokenizerFast) -> None:
    assert (
        tokenizer.eos_token_id not in tokenizer.backend_tokenizer.encode("<|endoftext|>", add_special_tokens=False).ids
    )


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

    with pytest.raises(UserError, match="bert: no causal language model: what it says of a token depends on the"):
        open_model(tmp_path / "bert")
