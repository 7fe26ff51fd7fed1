from html.parser import HTMLParser

import numpy as np
import pandas as pd
import yaml

from stages.corpus_page.__main__ import MAX_BARS, PAGE_TEMPLATE, grouped, html_report, in_words, length_bars
from stages.formats.tokens import Manifest, ShardEntry
from tests.small_project import ROOT

HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>&lt;b&gt;\u202e\x1b[31m\x00"


class Cells(HTMLParser):
    """The rows of all tables, as lists of their cells' texts; checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag not in ("html", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "html":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


def ledger(count: int) -> pd.DataFrame:
    rows = [
        {
            "source": f"s{n % 40:02d}",
            "path": "a.py",
            "license": "MIT" if n % 2 else "",
            "language": "Python",
            "bytes": 10,
            "characters": 8,
            "verdict": "kept" if n % 5 else "generated",
            "split": "" if n % 5 == 0 else "train",
            "because": "",
            "beginning": "",
        }
        for n in range(count)
    ]
    return pd.DataFrame(rows)


def test_the_page_shows_sizes_sources_licenses_lengths_and_drops() -> None:
    shard = ShardEntry("b", documents=80, tokens=320, bytes=800, sha256={})
    manifest = Manifest("uint16", 300, 0, "hash", "test 1", (shard,))
    text = html_report(ledger(100), {"train": manifest}, {"train": np.array([4] * 60 + [100] * 20)})

    cells = Cells()
    cells.feed(text)
    assert cells.open == []
    assert ["train", "80", "32", "800", "320", "2.00", "4"] in cells.rows
    assert ["together", "80", "32", "800", "320", "2.00", "4"] in cells.rows
    assert ["unknown", "40", "400", "50.0%"] in cells.rows
    assert ["4 to 7", "60", "75.0%"] in cells.rows
    assert ["64 to 127", "20", "25.0%"] in cells.rows
    assert ["generated", "20", "100.0%", "200"] in cells.rows
    assert "80 documents of 32 sources, 800 bytes of text, 320 tokens of a vocabulary of 300, encoded by test" in text
    assert "20 of 100 collected documents, 200 of 1,000 bytes" in text


def page_of(rows: pd.DataFrame) -> str:
    shard = ShardEntry("b", documents=1, tokens=2, bytes=10, sha256={})
    manifests = {"train": Manifest("uint16", 300, 0, "h", "e", (shard,))}
    return html_report(rows, manifests, {"train": np.array([2])})


def test_hostile_documents_are_shown_as_text() -> None:
    rows = ledger(4).assign(
        source=HOSTILE,
        path=HOSTILE,
        bytes=1234,
        characters=len(HOSTILE) + 1,
        because=HOSTILE,
        verdict=["kept", "near_duplicate", "near_duplicate", HOSTILE],
    )
    text, plain = page_of(rows.assign(beginning=["", HOSTILE, "", HOSTILE])), page_of(rows)

    cells = Cells()
    cells.feed(text)
    assert cells.open == []
    for markup in ("<script", "<img", "onerror=alert(2)>", "\u202e", "\x1b", "\x00"):
        assert markup not in text
    assert text.count("</pre>") == text.count("<pre>") == 2
    assert text.count("</details>") == plain.count("</details>") + 2
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in plain
    assert "&amp;lt;b&amp;gt;\\u202e\\x1b[31m\\x00" in text
    assert "<summary>near_duplicate: 1 of 2</summary>" in text
    assert text.count(" …</pre>") == 2
    assert "1,234 bytes: &lt;/pre&gt;" in text


def test_a_long_chart_sums_up_the_rest() -> None:
    rows = grouped(ledger(400), "source")

    assert len(rows) == MAX_BARS + 1
    assert sum(row.documents for row in rows) == 400
    assert rows[-1].name == "15 others"


def test_drops_are_ordered_by_what_their_bars_show() -> None:
    rows = ledger(40).assign(verdict=["kept"] + ["few_large"] * 2 + ["many_small"] * 37)
    rows.loc[1:2, "bytes"] = 10_000
    text = page_of(rows)

    assert text.index("many_small") < text.index("few_large")


def test_a_corpus_of_which_nothing_was_dropped_has_a_page() -> None:
    assert "0 of 2 collected documents" in page_of(ledger(2).assign(verdict="kept"))


def test_large_numbers_are_said_in_words() -> None:
    assert [in_words(n) for n in (999_999, 10_589_847, 999_700_000, 2 * 10**9, 10**13)] == [
        "999,999 ", "10.6 million ", "1 billion ", "2 billion ", "10 trillion ",
    ]  # fmt: skip


def test_ranges_of_lengths_double_and_leave_no_gap() -> None:
    rows = length_bars(np.array([1, 2, 3, 4, 70]))

    assert [(row.name, row.documents) for row in rows] == [
        ("1", 1), ("2 to 3", 2), ("4 to 7", 1), ("8 to 15", 0), ("16 to 31", 0), ("32 to 63", 0), ("64 to 127", 1),
    ]  # fmt: skip


def test_dvc_knows_the_template_as_a_dep_of_the_stage() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]

    assert PAGE_TEMPLATE.relative_to(ROOT).as_posix() in stages["corpus_page"]["deps"]
