"""What the model is asked to write: completions of held-out headers, and of the problems that params.yaml names."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from stages.evaluate.generate.headers import Header
from stages.evaluate.generate.languages import LANGUAGES
from stages.evaluate.generate.params import FileSet, GenerateParams, HubSet, LanguageName, SamplingParams
from stages.evaluate.generator import Request, prompt_tokens
from stages.evaluate.model import open_config, position_limit
from stages.evaluate.sampling import Sampling, after, stop_at
from stages.formats.evaluation.problems import Problem, as_problem, read_problems, require_unique
from stages.formats.model_folder import MODEL
from stages.runtime.entry import first_line
from stages.runtime.hub import data_set_error


@dataclass(frozen=True, slots=True)
class OpenSet:
    """A set and its problems."""

    name: str
    """The file, or the data set and its revision."""
    language: LanguageName
    stop: tuple[str, ...] | None
    """None: the language's own."""
    problems: list[Problem]


def open_sets(sets: Sequence[FileSet | HubSet]) -> list[OpenSet]:
    """Read all of them. Raises UserError where one cannot be read, or two problems have one task_id."""
    opened = []
    for one in sets:
        if isinstance(one, FileSet):
            name, problems = one.path, read_problems(Path(one.path), one.language)
        else:
            name, problems = f"{one.repository}@{one.revision}", _read_hub(one)
        opened.append(OpenSet(name, one.language, None if one.stop is None else tuple(one.stop), problems))
    if opened:
        require_unique([problem for one in opened for problem in one.problems], "generate.problems.sets")
    return opened


def _read_hub(one: HubSet) -> list[Problem]:
    # A second of imports: only where a data set is read.
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from httpx2 import HTTPError

    name = f"data set `{one.repository}`"
    try:
        rows = load_dataset(one.repository, one.configuration, split=one.split, revision=one.revision or None)
        return [as_problem(row, f"{name}: row {number}", one.language) for number, row in enumerate(rows, start=1)]
    except (DatasetsError, OSError, ValueError, RuntimeError, HTTPError) as error:
        what = f"generate.problems.sets: {name} cannot be read ({first_line(error)})"
        raise data_set_error(what, error, "correct its name, revision or split") from None


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


def sampling_of(params: SamplingParams) -> Sampling:
    """How tokens are drawn."""
    return Sampling(params.temperature, params.top_p, params.max_new_tokens)


def own_seed(seed: int, name: str) -> int:
    """48 bits of a hash of the stage's seed and a sample's name: few enough for JSON readers that have only doubles."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:6], "big")


def prompts_cut(tokenizer: PreTrainedTokenizerFast, requests: Sequence[Request]) -> int:
    """How many of the requests have a prompt of more tokens than the model reads."""
    limit = position_limit(open_config(MODEL))
    prompts = {request.prompt for request in requests}
    long = {prompt for prompt in prompts if limit is not None and len(prompt_tokens(tokenizer, prompt)) > limit}
    return sum(request.prompt in long for request in requests)
