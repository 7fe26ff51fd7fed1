"""Measures generated texts without running them: do they parse, do they repeat themselves or the training data.

Writes the report, a row of statistics per text, and a page of all texts that shades each token by its probability.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from transformers import PreTrainedTokenizerFast

from stages.evaluate.generate.languages import LANGUAGES
from stages.evaluate.generate.memorization import longest_shared
from stages.evaluate.generate.params import GenerateParams, Sampling
from stages.evaluate.generate.texts import Problems, Text
from stages.formats.evaluation.generation import (
    Generation,
    ProblemSetReceipt,
    Receipts,
    Sample,
    SampleCounts,
    StatisticsSummary,
)
from stages.formats.evaluation.problems import problems_sha256
from stages.formats.model_folder import MODEL, weights_sha256
from stages.formats.pages import filled_template
from stages.formats.reports import REPORTED_DIGITS, releases, significant
from stages.formats.tokens import TokenStore

SHADES = (0.5, 0.1, 0.01, 0.001)
"""A token's shade is the number of these probabilities that exceed its own."""

MAX_SHOWN_TEXTS = 1000
"""Texts in a part of the page, at most: each token is an element in the browser."""


class ShadedToken(NamedTuple):
    """A piece of a text on the page."""

    text: str
    shade: int
    """From 0, the most likely, to 4."""
    log_probability: float
    """The sum over all tokens if several form a character."""


def shaded_tokens(text: Text) -> tuple[list[ShadedToken], str]:
    """The tokens of the kept part of a text, and the rest of the text, such as an added newline."""
    written = "".join(text.written.pieces)[text.skipped :]
    pairs = zip(written, text.text, strict=False)
    kept = next((n for n, (drawn, final) in enumerate(pairs) if drawn != final), min(len(written), len(text.text)))
    tokens, end, likelihood = [], -text.skipped, 0.0
    for piece, log_probability in zip(text.written.pieces, text.written.log_probabilities, strict=True):
        begin, end, likelihood = end, end + len(piece), likelihood + log_probability
        if shown := written[max(begin, 0) : min(max(end, 0), kept)]:
            tokens.append(ShadedToken(shown, sum(exp(likelihood) < bound for bound in SHADES), likelihood))
        if piece:
            likelihood = 0.0
    return tokens, text.text[kept:]


NGRAM = 4
"""The length in tokens of the passages whose repetition is counted."""


@dataclass(frozen=True, slots=True)
class TextStatistics:
    """The measurements of a text."""

    text: Text
    tokens: int
    """The number of tokens after encoding the text again."""
    parses: bool | None
    """True if `Text.whole` parses; None for a language without a grammar."""
    repeated: float
    """Share of the text's 4-grams of tokens that occurred earlier in it."""
    longest_shared: int
    """Length in tokens of the text's longest passage that occurs in the training data."""


def statistics_of(texts: Sequence[Text], tokenizer: PreTrainedTokenizerFast, store: TokenStore) -> list[TextStatistics]:
    """Measure each text; `store` holds the training data."""
    encoded = tokenizer.backend_tokenizer.encode_batch([text.text for text in texts], add_special_tokens=False)
    ids_by_text = [encoding.ids for encoding in encoded]
    return [
        TextStatistics(
            text=text,
            tokens=len(ids),
            parses=parses(text.whole) if (parses := LANGUAGES[text.language].parses) else None,
            repeated=repeated_share(ids),
            longest_shared=shared,
        )
        for text, ids, shared in zip(texts, ids_by_text, longest_shared(store, ids_by_text), strict=True)
    ]


def repeated_share(ids: Sequence[int]) -> float:
    """The share of a text's 4-grams of tokens that occurred earlier in it; 0 if it has none."""
    ngrams = [tuple(ids[start : start + NGRAM]) for start in range(len(ids) - NGRAM + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def summed_up(statistics: Sequence[TextStatistics]) -> StatisticsSummary:
    """Shares and medians over the texts."""
    ends = [row.text.written.finish_reason for row in statistics]
    return StatisticsSummary(
        texts=len(statistics),
        parsed_share=mean(row.parses for row in statistics),
        repeated_share=mean(row.repeated for row in statistics),
        longest_shared_median=float(median(row.longest_shared for row in statistics)) if statistics else None,
        longest_shared_maximum=max((row.longest_shared for row in statistics), default=None),
        ended={end: ends.count(end) for end in sorted(set(ends))},
    )


def mean(values: Iterable[float | None]) -> float | None:
    """The rounded mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return significant(fmean(known)) if known else None


def generation(
    params: GenerateParams,
    sets: Problems,
    samples: Sequence[Sample],
    statistics: Sequence[TextStatistics],
    prompts_cut: int,
) -> Generation:
    """The report. `prompts_cut` is the number of prompts that were longer than the model reads."""
    return Generation(
        samples=SampleCounts(
            functions=sum(sample.parses is not None for sample in samples),
            parsed=sum(bool(sample.parses) for sample in samples),
            parsed_share=mean(sample.parses for sample in samples),
            cut_off=sum(not sample.finished for sample in samples),
        ),
        headers=summed_up([row for row in statistics if row.text.kind == "header"]),
        problems=summed_up([row for row in statistics if row.text.kind == "problem"]),
        receipts=Receipts(
            weights_sha256=weights_sha256(MODEL),
            problem_sets={
                problems_sha256(problems): ProblemSetReceipt(name=problem_set.path, problems=len(problems))
                for problem_set, problems in sets
            },
            seed=params.seed,
            width=params.width,
            prompts_cut=prompts_cut,
            sampling={
                name: settings.model_dump(include={*Sampling.model_fields})
                for name, settings in {"headers": params.headers, "problems": params.problems}.items()
            },
            versions=releases(),
        ),
    )


def html_page(report: Generation, statistics: Sequence[TextStatistics]) -> str:
    """A page with everything that the model wrote."""
    headers = [row for row in statistics if row.text.kind == "header"]
    problems = [row for row in statistics if row.text.kind == "problem"]
    languages = {row.text.language for row in headers}
    kinds = {"headers": languages != {"text"}, "paragraphs": "text" in languages}
    prompts = [name for name, is_shown in kinds.items() if is_shown]
    return filled_template(
        Path(__file__).with_name("samples.html.jinja"),
        {"percent": "{:.0%}".format, "nats": "{:.3f}".format},
        report=report,
        shades=SHADES,
        shown_texts=MAX_SHOWN_TEXTS,
        shaded_tokens=shaded_tokens,
        # The samples of a prompt are adjacent.
        by_prompt=lambda statistics: [
            [*group] for _, group in groupby(statistics, lambda row: (row.text.name, row.text.prompt))
        ],
        parts=[
            (f"Held-out {' and '.join(prompts)}", report.headers, headers),
            *([("Code problems", report.problems, problems)] if problems else []),
        ],
    )


def statistics_csv(statistics: Iterable[TextStatistics]) -> str:
    """CSV with a heading and one row per text."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(("kind", "name", "sample", "ended", "tokens", "parses", "repeated", "longest_shared"))
    for measured in statistics:
        text = measured.text
        row = (text.kind, text.name, text.sample, text.written.finish_reason, measured.tokens, measured.parses)
        writer.writerow((*row, f"{measured.repeated:.{REPORTED_DIGITS}g}", measured.longest_shared))
    return output.getvalue()
