"""Measures what the model wrote without running it: does it parse, does it repeat itself or the training data.

The report, with the settings that the texts were generated with; a row for each text; and all of it on one page, where
each token is shaded by how likely it was.
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
"""Probabilities: a token has as many shades as it is less likely than of these."""

MAX_SHOWN_TEXTS = 1000
"""Most texts in a part of the page: each token is an element that a browser has to show."""


class ShadedToken(NamedTuple):
    """A piece of a text on the page."""

    text: str
    shade: int
    """0, the likeliest, to 4."""
    log_probability: float
    """If several tokens make up a character, the sum over all of them."""


def shaded_tokens(text: Text) -> tuple[list[ShadedToken], str]:
    """The tokens of what was kept of a text, cut at its ends, and what the text has after them: an added line's end."""
    written = "".join(text.written.pieces)[text.skipped :]
    both = zip(written, text.text, strict=False)
    kept = next((n for n, (one, other) in enumerate(both) if one != other), min(len(written), len(text.text)))
    found, end, likelihood = [], -text.skipped, 0.0
    for piece, log_probability in zip(text.written.pieces, text.written.log_probabilities, strict=True):
        begin, end, likelihood = end, end + len(piece), likelihood + log_probability
        if shown := written[max(begin, 0) : min(max(end, 0), kept)]:
            found.append(ShadedToken(shown, sum(exp(likelihood) < bound for bound in SHADES), likelihood))
        if piece:
            likelihood = 0.0
    return found, text.text[kept:]


SAMPLES_TEMPLATE = Path(__file__).with_name("samples.html.jinja")

NGRAM = 4
"""Tokens of the passages whose repetition is counted."""


@dataclass(frozen=True, slots=True)
class TextStatistics:
    """The measurements of a text."""

    text: Text
    tokens: int
    """Tokens of the text, tokenized again."""
    parses: bool | None
    """True if the whole parses; None for a language without a grammar."""
    repeated: float
    """Share of the text's 4-grams of tokens that occurred before in it."""
    longest_shared: int
    """Tokens of the text's longest passage that occurs in the training data."""


def statistics_of(texts: Sequence[Text], tokenizer: PreTrainedTokenizerFast, store: TokenStore) -> list[TextStatistics]:
    """Measure each text; `store` holds the training data."""
    encoded = tokenizer.backend_tokenizer.encode_batch([one.text for one in texts], add_special_tokens=False)
    ids = [encoding.ids for encoding in encoded]
    return [
        TextStatistics(
            text=text,
            tokens=len(own),
            parses=parses(text.whole) if (parses := LANGUAGES[text.language].parses) else None,
            repeated=repeated_share(own),
            longest_shared=shared,
        )
        for text, own, shared in zip(texts, ids, longest_shared(store, ids), strict=True)
    ]


def repeated_share(ids: Sequence[int]) -> float:
    """The share of a text's 4-grams of tokens that occurred in it before; 0 if it has none."""
    ngrams = [tuple(ids[start : start + NGRAM]) for start in range(len(ids) - NGRAM + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def summed_up(statistics: Sequence[TextStatistics]) -> StatisticsSummary:
    """The report's figures: shares and medians over the texts."""
    ends = [one.text.written.finish_reason for one in statistics]
    return StatisticsSummary(
        texts=len(statistics),
        parsed_share=mean(one.parses for one in statistics),
        repeated_share=mean(one.repeated for one in statistics),
        longest_shared_median=float(median(one.longest_shared for one in statistics)) if statistics else None,
        longest_shared_maximum=max((one.longest_shared for one in statistics), default=None),
        ended={end: ends.count(end) for end in sorted(set(ends))},
    )


def mean(values: Iterable[float | None]) -> float | None:
    """The rounded mean of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return significant(fmean(known)) if known else None


def generation(
    params: GenerateParams,
    sets: Problems,
    samples: Sequence[Sample],
    statistics: Sequence[TextStatistics],
    prompts_cut: int,
) -> Generation:
    """The report. `prompts_cut` is how many prompts were longer than the model reads."""
    return Generation(
        samples=SampleCounts(
            functions=sum(sample.parses is not None for sample in samples),
            parsed=sum(bool(sample.parses) for sample in samples),
            parsed_share=mean(sample.parses for sample in samples),
            cut_off=sum(not sample.finished for sample in samples),
        ),
        headers=summed_up([one for one in statistics if one.text.kind == "header"]),
        problems=summed_up([one for one in statistics if one.text.kind == "problem"]),
        receipts=Receipts(
            weights_sha256=weights_sha256(MODEL),
            problem_sets={
                problems_sha256(problems): ProblemSetReceipt(name=one.path, problems=len(problems))
                for one, problems in sets
            },
            seed=params.seed,
            width=params.width,
            prompts_cut=prompts_cut,
            sampling={
                name: of.model_dump(include={*Sampling.model_fields})
                for name, of in {"headers": params.headers, "problems": params.problems}.items()
            },
            versions=releases(),
        ),
    )


def html_page(report: Generation, statistics: Sequence[TextStatistics]) -> str:
    """Everything that the model wrote on one page of HTML, for people."""
    headers = [one for one in statistics if one.text.kind == "header"]
    problems = [one for one in statistics if one.text.kind == "problem"]
    languages = {one.text.language for one in headers}
    prompts = ["headers"] * (languages != {"text"}) + ["paragraphs"] * ("text" in languages)
    return filled_template(
        SAMPLES_TEMPLATE,
        {"percent": "{:.0%}".format, "nats": "{:.3f}".format},
        report=report,
        shades=SHADES,
        shown_texts=MAX_SHOWN_TEXTS,
        shaded_tokens=shaded_tokens,
        # The samples of a prompt follow one another.
        by_prompt=lambda statistics: [
            [*group] for _, group in groupby(statistics, lambda one: (one.text.name, one.text.prompt))
        ],
        parts=[
            (f"Held-out {' and '.join(prompts)}", report.headers, headers),
            *([("Code problems", report.problems, problems)] if problems else []),
        ],
    )


def statistics_csv(statistics: Iterable[TextStatistics]) -> str:
    """A row for each text, with a heading."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(("kind", "name", "sample", "ended", "tokens", "parses", "repeated", "longest_shared"))
    for one in statistics:
        text = one.text
        row = (text.kind, text.name, text.sample, text.written.finish_reason, one.tokens, one.parses)
        writer.writerow((*row, f"{one.repeated:.{REPORTED_DIGITS}g}", one.longest_shared))
    return output.getvalue()
