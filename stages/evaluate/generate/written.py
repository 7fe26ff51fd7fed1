"""The texts that the model writes, and what is kept of them."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from rich.progress import track

from stages.evaluate.generate.asked import Asked, OpenSet, problem_requests
from stages.evaluate.generate.headers import Header
from stages.evaluate.generate.languages import LANGUAGES
from stages.evaluate.generate.looks import Text
from stages.evaluate.generate.params import GenerateParams
from stages.evaluate.generator import Generated, Request, generate
from stages.evaluate.model import content_key, open_model, open_tokenizer
from stages.evaluate.side_by_side import run_in_processes
from stages.formats.evaluation.completions import Completion
from stages.formats.evaluation.problems import problems_sha256
from stages.formats.evaluation.samples import Sample
from stages.formats.model_folder import MODEL
from stages.runtime.cache import ResultLog, cache_key
from stages.runtime.code import code_key

TEXTS = "generate"
"""Their kind in the cache, until the stage's outputs are written."""


def written_texts(
    params: GenerateParams, sets: Sequence[OpenSet], headers: Sequence[Header], requests: Sequence[Request]
) -> list[Generated]:
    """A text for each request, in their order. The processes share what an earlier run of the same has not finished.

    Each text is stored as soon as it has ended, so that a kill loses none.
    """
    asked = [repr((request.prompt, request.seed, request.sampling)) for request in requests]
    # Where a text ends follows from the parameters, the problems, the headers and from this code.
    ends = [params.model_dump_json(), problems_sha256(problem for one in sets for problem in one.problems)]
    ends += [*(header.signature for header in headers), code_key(problem_requests)]
    log = ResultLog(TEXTS, cache_key(content_key(MODEL), *asked, *ends))
    finished = log.read()
    missing = [number for number in range(len(requests)) if str(number) not in finished]
    if missing:
        run_in_processes(partial(_write_share, log, requests, missing, params.width))
        finished = log.read()
    return [Generated(number, *finished[str(number)]) for number in range(len(requests))]


def _write_share(
    log: ResultLog, requests: Sequence[Request], missing: Sequence[int], width: int, rank: int, processes: int
) -> None:
    """Write the texts of one process."""
    own = missing[rank::processes]
    if not own:
        return
    model, tokenizer = open_model(MODEL), open_tokenizer(MODEL)
    longest = max(request.sampling.max_new_tokens for request in requests)
    with closing(generate(model, tokenizer, [requests[number] for number in own], width, longest)) as texts:
        for one in track(texts, total=len(own), description="sampling", disable=rank > 0):
            log.append(str(own[one.request]), [one.text, one.ended, one.ids])


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
