"""Requests to the model for held-out headers and code problems, and what is kept of its answers."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from stages.evaluate.generate.languages.headers import Header
from stages.evaluate.generate.languages.known import LANGUAGES
from stages.evaluate.generate.looks import Text
from stages.evaluate.generate.params import GenerateParams, HeaderParams, LanguageName, ProblemParams
from stages.evaluate.generate.problem_sets import OpenSet
from stages.evaluate.generator import Generated, Request, Sampling, prompt_tokens
from stages.evaluate.stopping import after, stop_at
from stages.formats.evaluation.generation import Completion, Sample
from stages.formats.evaluation.problems import Problem


@dataclass(frozen=True, slots=True)
class Asked:
    """One sample of one problem."""

    problem: Problem
    sample: int
    language: LanguageName


def header_requests(headers: Sequence[Header], params: GenerateParams) -> list[Request]:
    """A request for one completion of each header."""
    end = LANGUAGES[params.language].header_end
    sampling = sampling_of(params.headers)
    return [Request(header.prompt, own_seed(params.seed, header.key), end(header), sampling) for header in headers]


def problem_requests(
    sets: Sequence[OpenSet], params: GenerateParams, tokenizer: PreTrainedTokenizerFast
) -> tuple[list[Asked], list[Request]]:
    """`generate.problems.samples` samples of each problem, and the request for each."""
    asked, requests, sampling = [], [], sampling_of(params.problems)
    for one in sets:
        for problem in one.problems:
            prompt = prompt_to_read(problem.prompt, tokenizer)
            stop = stop_at(one.stop if one.stop is not None else LANGUAGES[one.language].stops[problem.kind])
            end = after(problem.prompt[len(prompt) :], stop)
            for sample in range(params.problems.samples):
                asked.append(Asked(problem, sample, one.language))
                requests.append(Request(prompt, own_seed(params.seed, f"{problem.task_id}:{sample}"), end, sampling))
    return asked, requests


def prompt_to_read(prompt: str, tokenizer: PreTrainedTokenizerFast) -> str:
    """A prompt without the white space at its end, unless that is in one token with what comes before it.

    GPT-2's pattern makes a token of a newline and the indent after it, which a model cannot write after the newline
    alone. With GPT-4's pattern a quotation mark and the newline after it are one token instead.
    """
    stripped = prompt.rstrip()
    ids = prompt_tokens(tokenizer, stripped)
    return stripped if prompt_tokens(tokenizer, prompt)[: len(ids)] == ids else prompt


def sampling_of(params: HeaderParams | ProblemParams) -> Sampling:
    """How tokens are drawn."""
    return Sampling(params.temperature, params.top_p, params.max_new_tokens)


def own_seed(seed: int, name: str) -> int:
    """48 bits of a hash of the stage's seed and a sample's name: few enough for JSON readers that have only doubles."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:6], "big")


def header_sample(header: Header, request: Request, written: Generated, params: GenerateParams) -> Sample:
    """The completion of a header, without its last line if the text was cut off in it."""
    finished = written.ended != "length"
    body = (written.text if finished else written.text[: written.text.rfind("\n") + 1]).rstrip() + "\n"
    parses = LANGUAGES[params.language].parses
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
    """A completed header, as looks.py measures it."""
    name = f"{sample.source} {sample.path}:{sample.line}"
    whole = sample.signature + sample.body
    return Text("header", name, 0, sample.prompt, sample.body, whole, written.ended, params.language)


def completion(asked: Asked, request: Request, written: Generated) -> Completion:
    """The completion of a problem: what follows the whole prompt, so without the white space that ends the prompt."""
    return Completion(
        task_id=asked.problem.task_id,
        sample=asked.sample,
        seed=request.seed,
        completion=written.text.removeprefix(asked.problem.prompt[len(request.prompt) :]),
        ended=written.ended,
    )


def problem_text(asked: Asked, done: Completion) -> Text:
    """A completed problem, as looks.py measures it."""
    prompt, text = asked.problem.prompt, done.completion
    return Text("problem", done.task_id, done.sample, prompt, text, prompt + text, done.ended, asked.language)
