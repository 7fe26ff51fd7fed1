"""Requests for completions of held-out headers and of problems, and the texts made from the results."""

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from transformers import PreTrainedTokenizerFast

from stages.evaluate.generate.generator import Generated, GenerationRequest, generate, prompt_tokens
from stages.evaluate.generate.languages import LANGUAGES, Header, language_of
from stages.evaluate.generate.params import GenerateParams, ProblemSet
from stages.evaluate.generate.rows import after, stop_at
from stages.evaluate.model import open_config, open_model, open_tokenizer, position_limit
from stages.formats.evaluation.generation import Completion, Sample
from stages.formats.evaluation.problems import Problem, read_problems, require_unique
from stages.formats.model_folder import MODEL
from stages.runtime.workers import counted

Problems: TypeAlias = list[tuple[ProblemSet, list[Problem]]]
"""Each set with its problems."""


def open_sets(sets: Sequence[ProblemSet]) -> Problems:
    """Read all sets. Raises UserError if one cannot be read, or two problems have the same task_id."""
    opened = [(problem_set, read_problems(Path(problem_set.path), problem_set.language)) for problem_set in sets]
    if opened:
        require_unique([problem for _, problems in opened for problem in problems], "generate.problems.sets")
    return opened


@dataclass(frozen=True, slots=True)
class Text:
    """A completion of a header or a problem."""

    kind: Literal["header", "problem"]
    name: str
    """Source, path and line; or the task_id."""
    sample: int
    prompt: str
    text: str
    """The kept part of the generated text."""
    whole: str
    """The text with the signature or problem that it completes."""
    written: Generated
    skipped: int
    """Characters generated before `text`: white space of the prompt that the model wrote itself."""
    language: str


def header_requests(headers: Sequence[Header], params: GenerateParams) -> list[GenerationRequest]:
    """One request per header."""
    ends = [LANGUAGES[language_of(header.path, params.language)].header_end(header) for header in headers]
    return [
        GenerationRequest(header.prompt, own_seed(params.seed, header.key), end, params.headers)
        for header, end in zip(headers, ends, strict=True)
    ]


def problem_requests(
    sets: Problems, params: GenerateParams, tokenizer: PreTrainedTokenizerFast
) -> tuple[list[tuple[Problem, int]], list[GenerationRequest]]:
    """All (problem, sample number) pairs for `generate.problems.samples`, and a request for each."""
    asked, requests = [], []
    for problem_set, problems in sets:
        for problem in problems:
            prompt = prompt_to_read(problem.prompt, tokenizer)
            strings = problem_set.stop
            stop = stop_at(LANGUAGES[problem.language].stops[problem.kind] if strings is None else strings)
            end = after(problem.prompt[len(prompt) :], stop)
            for sample in range(params.problems.samples):
                asked.append((problem, sample))
                seed = own_seed(params.seed, f"{problem.task_id}:{sample}")
                requests.append(GenerationRequest(prompt, seed, end, params.problems))
    return asked, requests


def prompt_to_read(prompt: str, tokenizer: PreTrainedTokenizerFast) -> str:
    """A prompt without trailing white space, unless this shares a token with the text before it.

    With GPT-2's pattern a newline and the indent after it are one token, which a model cannot continue from the newline
    alone. With GPT-4's pattern a quotation mark and the newline after it are one token.
    """
    stripped = prompt.rstrip()
    ids = prompt_tokens(tokenizer, stripped)
    return stripped if prompt_tokens(tokenizer, prompt)[: len(ids)] == ids else prompt


def own_seed(seed: int, name: str) -> int:
    """48 bits of a hash of the stage's seed and a sample's name, which JSON readers represent exactly as a double."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:6], "big")


def prompts_cut(tokenizer: PreTrainedTokenizerFast, requests: Sequence[GenerationRequest]) -> int:
    """The number of requests whose prompt has more tokens than the model reads."""
    limit = position_limit(open_config(MODEL))
    prompts = {request.prompt for request in requests}
    long = {prompt for prompt in prompts if limit is not None and len(prompt_tokens(tokenizer, prompt)) > limit}
    return sum(request.prompt in long for request in requests)


def written_texts(requests: Sequence[GenerationRequest], width: int, shaded: Container[int]) -> list[Generated]:
    """Generate a text for each request, in order. Those not in `shaded` lack their pieces and probabilities."""
    if not requests:
        return []
    texts = generate(open_model(MODEL), open_tokenizer(MODEL), requests, width)
    kept = (text if text.request in shaded else replace(text, pieces=[], log_probabilities=[]) for text in texts)
    return sorted(counted(kept, "sampling", "texts", len(requests)), key=lambda text: text.request)


def header_sample(header: Header, request: GenerationRequest, written: Generated, params: GenerateParams) -> Sample:
    """The completion of a header. Code that reached the token limit is cut to its last whole line, to let it parse."""
    finished = written.finish_reason != "length"
    parses = LANGUAGES[language_of(header.path, params.language)].parses
    kept = written.text if finished or not parses else written.text[: written.text.rfind("\n") + 1]
    body = kept.rstrip() + "\n"
    return Sample(
        source=header.source,
        path=header.path,
        line=header.line,
        prompt=header.prompt,
        signature=header.signature,
        body=body,
        seed=request.seed,
        finished=finished,
        parses=parses(header.signature + body) if parses else None,
    )


def header_text(sample: Sample, written: Generated, params: GenerateParams) -> Text:
    """A completed header for report.py."""
    whole, language = sample.signature + sample.body, language_of(sample.path, params.language)
    return Text("header", sample.name, 0, sample.prompt, sample.body, whole, written, 0, language)


def completion(asked: tuple[Problem, int], request: GenerationRequest, written: Generated) -> Completion:
    """The completion of a problem, without the white space that ends the prompt."""
    problem, sample = asked
    return Completion(
        task_id=problem.task_id,
        sample=sample,
        seed=request.seed,
        completion=written.text.removeprefix(problem.prompt[len(request.prompt) :]),
        ended=written.finish_reason,
    )


def problem_text(asked: tuple[Problem, int], done: Completion, written: Generated) -> Text:
    """A completed problem for report.py."""
    (problem, sample), text = asked, done.completion
    whole, skipped = problem.prompt + text, len(written.text) - len(text)
    return Text("problem", done.task_id, sample, problem.prompt, text, whole, written, skipped, problem.language)
