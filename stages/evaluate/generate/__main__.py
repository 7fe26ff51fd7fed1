"""Model + held-out headers + code problems -> generated texts: `python -m stages.evaluate.generate`."""

import stages.evaluate.libraries  # noqa: F401 (before torch)

# isort: split

from stages.evaluate.generate import texts
from stages.evaluate.generate.languages import choose_headers, drawn_documents
from stages.evaluate.generate.params import GenerateParams
from stages.evaluate.generate.report import MAX_SHOWN_TEXTS, generation, html_page, statistics_csv, statistics_of
from stages.evaluate.model import open_tokenizer
from stages.formats.documents import CLEAN, require_documents
from stages.formats.evaluation.generation import SAMPLES_HTML, TEXT_STATISTICS, write_completions, write_samples
from stages.formats.evaluation.problems import write_problems
from stages.formats.model_folder import MODEL, weight_files
from stages.formats.reports import write_metrics
from stages.formats.tokens import TOKENS, TRAIN, VALIDATION, TokenStore
from stages.runtime.atomic import atomic_write
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage


def main() -> None:
    params = read_section("generate", GenerateParams)
    held_out = CLEAN / VALIDATION
    require_documents(held_out)
    weight_files(MODEL)
    store = TokenStore(TOKENS / TRAIN)
    sets = texts.open_sets(params.problems.sets)
    documents, wanted = drawn_documents(held_out, params.seed), params.headers
    headers = choose_headers(documents, params.language, wanted.count, wanted.header_bytes, params.seed)

    tokenizer = open_tokenizer(MODEL)
    beginnings = texts.header_requests(headers, params)
    asked, prompts = texts.problem_requests(sets, params, tokenizer)
    cut = texts.prompts_cut(tokenizer, [*beginnings, *prompts])
    if cut:
        print(f"note: {cut} of {len(beginnings) + len(prompts)} prompts are cut: the model reads only their end")
    shaded = {*range(MAX_SHOWN_TEXTS), *range(len(beginnings), len(beginnings) + MAX_SHOWN_TEXTS)}
    written = texts.written_texts([*beginnings, *prompts], params.width, shaded)
    bodies, solutions = written[: len(beginnings)], written[len(beginnings) :]

    samples = [texts.header_sample(*row, params) for row in zip(headers, beginnings, bodies, strict=True)]
    header_texts = [texts.header_text(*row, params) for row in zip(samples, bodies, strict=True)]
    completions = [texts.completion(*row) for row in zip(asked, prompts, solutions, strict=True)]
    problem_texts = [texts.problem_text(*row) for row in zip(asked, completions, solutions, strict=True)]

    statistics = statistics_of([*header_texts, *problem_texts], tokenizer, store)
    report = generation(params, sets, samples, statistics, cut)
    write_samples(samples)
    write_problems(problem for _, problems in sets for problem in problems)
    write_completions(completions)
    atomic_write(SAMPLES_HTML, html_page(report, statistics))
    atomic_write(TEXT_STATISTICS, statistics_csv(statistics))
    report.write()
    write_metrics("generate", {"parsed": report.samples.parsed_share})


if __name__ == "__main__":
    run_stage(main)
