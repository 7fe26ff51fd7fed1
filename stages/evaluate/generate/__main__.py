"""Model + held-out headers + code problems -> what the model writes: `python -m stages.evaluate.generate`.

`PARROTFLOW_GENERATE_PROCESSES` is the number of processes that share the texts (default: one for each GPU, else one):
it changes the time, not the result. A kill loses no finished text: the same command continues.
"""

import stages.evaluate.threads  # noqa: F401 (before torch)

# isort: split

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerFast

from stages.evaluate.generate.completion import (
    completion,
    header_requests,
    header_sample,
    header_text,
    problem_requests,
    problem_text,
)
from stages.evaluate.generate.html_page import html_page
from stages.evaluate.generate.kept import Task, drop_kept, written_texts
from stages.evaluate.generate.languages.headers import Header, choose_headers
from stages.evaluate.generate.languages.known import LANGUAGES
from stages.evaluate.generate.looks import look_at, looks_csv
from stages.evaluate.generate.page import samples_page
from stages.evaluate.generate.params import GenerateParams
from stages.evaluate.generate.problem_sets import OpenSet, open_sets
from stages.evaluate.generate.report import generation
from stages.evaluate.generator import Generated, Request, prompt_tokens
from stages.evaluate.model import open_config, open_tokenizer, position_limit_of
from stages.formats.documents import CLEAN, read_documents, require_documents
from stages.formats.evaluation.generation import (
    LOOKS,
    SAMPLES_HTML,
    SAMPLES_PAGE,
    write_completions,
    write_samples,
)
from stages.formats.evaluation.problems import problems_sha256, write_problems
from stages.formats.model_folder import MODEL, weight_files
from stages.formats.splits import TRAIN, VALIDATION
from stages.formats.tokens import TOKENS, TokenStore
from stages.runtime.atomic import atomic_write
from stages.runtime.code import code_key
from stages.runtime.entry import run_stage, whole_number
from stages.runtime.section import read_section

HELD_OUT_DOCUMENTS = CLEAN / VALIDATION

PROCESSES_VARIABLE = "PARROTFLOW_GENERATE_PROCESSES"


def main() -> None:
    params = read_section("generate", GenerateParams)
    require_documents(HELD_OUT_DOCUMENTS)
    weight_files(MODEL)
    store = TokenStore(TOKENS / TRAIN)
    sets = open_sets(params.problems.sets)
    headers = choose_headers(
        read_documents(HELD_OUT_DOCUMENTS),
        LANGUAGES[params.language].headers,
        params.headers.count,
        params.headers.header_bytes,
        params.seed,
    )

    tokenizer = open_tokenizer(MODEL)
    beginnings = header_requests(headers, params)
    asked, prompts = problem_requests(sets, params, tokenizer)
    cut = prompts_cut(tokenizer, [*beginnings, *prompts])
    if cut:
        print(f"note: {cut} of {len(beginnings) + len(prompts)} prompts are cut: the model reads only their end")
    texts = written(params, sets, headers, [*beginnings, *prompts])
    bodies, solutions = texts[: len(beginnings)], texts[len(beginnings) :]

    samples = [header_sample(*one, params) for one in zip(headers, beginnings, bodies, strict=True)]
    header_texts = [header_text(*one, params) for one in zip(samples, bodies, strict=True)]
    completions = [completion(*one) for one in zip(asked, prompts, solutions, strict=True)]
    problem_texts = [problem_text(*one) for one in zip(asked, completions, strict=True)]

    looks = look_at([*header_texts, *problem_texts], tokenizer, store)
    report = generation(params, sets, samples, looks, cut)
    write_samples(samples)
    write_problems(problem for one in sets for problem in one.problems)
    write_completions(completions)
    atomic_write(SAMPLES_PAGE, samples_page(samples, params.headers))
    atomic_write(SAMPLES_HTML, html_page(report, looks))
    atomic_write(LOOKS, looks_csv(looks))
    report.write()
    drop_kept()


def prompts_cut(tokenizer: PreTrainedTokenizerFast, requests: Sequence[Request]) -> int:
    """How many of the requests have a prompt of more tokens than the model reads."""
    limit = position_limit_of(open_config(MODEL))
    prompts = {request.prompt for request in requests}
    long = {prompt for prompt in prompts if limit is not None and len(prompt_tokens(tokenizer, prompt)) > limit}
    return sum(request.prompt in long for request in requests)


def written(
    params: GenerateParams, sets: Sequence[OpenSet], headers: Sequence[Header], requests: Sequence[Request]
) -> list[Generated]:
    """A text for each request; those that an earlier run of the same has finished are read, not written again."""
    # Where a text ends follows from the parameters, the problems, the headers and from this code.
    problems = problems_sha256(problem for one in sets for problem in one.problems)
    facts = (params.model_dump_json(), problems, *(header.signature for header in headers), code_key(problem_requests))
    processes = whole_number(PROCESSES_VARIABLE, max(1, torch.cuda.device_count()))
    return written_texts(Task(MODEL, requests, params.width, facts), processes)


if __name__ == "__main__":
    run_stage(main)
