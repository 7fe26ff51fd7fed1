import csv
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from statistics import median

import pytest

from stages.clean.__main__ import main as clean
from stages.collect.__main__ import main as collect
from stages.evaluate.generate import report
from stages.evaluate.generate.__main__ import main
from stages.evaluate.generate.texts import own_seed
from stages.formats.evaluation.generation import Generation, ProblemSetReceipt, read_completions
from stages.formats.evaluation.problems import problems_sha256, read_problems, read_written_problems
from stages.formats.model_folder import weights_sha256
from stages.runtime.errors import UserError
from tests.small_project import ROOT
from tests.trained_project import write_sections

OUTS = (
    "data/samples.json",
    "data/samples.html",
    "data/looks.csv",
    "data/problems.jsonl",
    "data/completions.jsonl",
    "reports/generate.json",
)


def outs(project: Path) -> dict[str, bytes]:
    return {name: (project / name).read_bytes() for name in OUTS}


def test_headers_and_problems_are_completed_with_their_receipts_and_a_second_run_gives_the_same_bytes(
    project: Path,
) -> None:
    main()

    own = read_problems(ROOT / "evaluation/problems/python.jsonl")
    completions = read_completions()
    assert read_written_problems() == sorted(own, key=lambda problem: problem.task_id)
    assert [one.sort_key for one in completions] == sorted((p.task_id, k) for p in own for k in range(2))
    assert all(one.seed == own_seed(0, f"{one.task_id}:{one.sample}") for one in completions)
    samples = json.loads((project / "data/samples.json").read_text())
    assert len(samples) == 3
    report = Generation.read()
    assert report.receipts.weights_sha256 == weights_sha256()
    assert report.receipts.problem_sets == {
        problems_sha256(own): ProblemSetReceipt(name="evaluation/problems/python.jsonl", problems=12)
    }
    assert report.samples.functions == report.headers.texts == 3
    assert report.problems.texts == sum(report.problems.ended.values()) == 24
    looks = list(csv.DictReader((project / "data/looks.csv").open(newline="")))
    assert [look["kind"] for look in looks] == ["header"] * 3 + ["problem"] * 24
    assert [int(look["longest_shared"]) <= int(look["tokens"]) for look in looks] == [True] * 27
    likelihoods = [float(title) for title in Texts((project / "data/samples.html").read_text()).titles]
    assert max(likelihoods) <= 0
    # An untrained model finds each of 300 tokens about equally likely.
    assert median(likelihoods) == pytest.approx(-math.log(300), abs=0.3)
    first = outs(project)
    main()
    assert outs(project) == first


class Texts(HTMLParser):
    """The text of each <pre>, and every tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.blocks: list[str] = []
        self.titles: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if self.inside and tag == "i":
            self.titles.append(str(dict(attrs)["title"]))
        if tag == "pre":
            self.blocks.append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "pre"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.blocks[-1] += data


def test_everything_is_on_one_page_and_markup_in_it_stays_text(project: Path) -> None:
    prompt = "<script>alert('&')</script></pre><img src=x onerror=alert(1)>\n"
    row = {"task_id": "<b>1</b>", "prompt": prompt, "entry_point": "f", "canonical_solution": "", "test": ""}
    (project / "evaluation/problems/hostile.jsonl").write_text(json.dumps(row) + "\n")
    hostile = {"path": "evaluation/problems/hostile.jsonl", "language": "text", "stop": ["\n"]}
    write_sections(project, generate__problems__sets=[hostile])

    main()

    page = Texts((project / "data/samples.html").read_text())
    completions = read_completions()
    samples = json.loads((project / "data/samples.json").read_text())
    assert [block.removeprefix("\n") for block in page.blocks] == [
        *(sample["prompt"] + sample["body"] for sample in samples),
        prompt,  # once for all of its samples
        *(one.completion for one in completions),
    ]
    assert not page.tags & {"script", "img"}
    report = Generation.read()
    assert report.problems.parsed_share is None  # plain text has no grammar


def test_nothing_need_be_asked(project: Path) -> None:
    write_sections(project, generate__headers__count=0, generate__problems__sets=[])

    main()

    report = Generation.read()
    assert (report.samples.functions, report.samples.parsed_share, report.problems.texts) == (0, None, 0)
    assert read_completions() == []


def test_problems_that_are_not_there_are_refused(project: Path) -> None:
    missing = {"path": "evaluation/problems/x.csv", "language": "python", "stop": None}
    write_sections(project, generate__problems__sets=[missing])

    with pytest.raises(UserError, match=r"evaluation/problems/x\.csv: cannot be read \(No such file or directory\)"):
        main()


def test_prompts_longer_than_the_model_reads_are_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sections(project, generate__headers__header_bytes=5000)

    main()

    cut = Generation.read().receipts.prompts_cut
    assert cut
    assert f"note: {cut} of " in capsys.readouterr().out


def test_a_page_shows_no_more_texts_than_a_browser(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_SHOWN_TEXTS", 2)
    main()

    page = (project / "data/samples.html").read_text()
    assert "The first 2 of 3 texts" in page
    assert page.count(" in a row that also occur") == 4  # two headers and two samples of a problem


def test_of_mixed_files_code_is_completed_by_functions_and_text_by_paragraphs(project: Path) -> None:
    (project / "corpus").mkdir(exist_ok=True)
    for number in range(12):
        (project / f"corpus/{number}.md").write_text(
            f"Notiz {number} über den Wald.\n\nEs regnet seit {number} Tagen.\n"
        )
    write_sections(project, generate__language="mixed", generate__problems__sets=[], generate__headers__count=20)
    for stage in (collect, clean):
        stage()

    main()

    samples = json.loads((project / "data/samples.json").read_text())
    of_code = [one for one in samples if one["path"].endswith(".py")]
    assert of_code
    assert all("def " in one["signature"] and one["parses"] is not None for one in of_code)
    of_text = [one for one in samples if one["path"].endswith(".md")]
    assert of_text
    assert all(one["parses"] is None for one in of_text)
    counts = Generation.read().samples
    row = f"<td>Held-out headers and paragraphs</td><td>{len(samples)}</td><td>{counts.parsed} of {len(of_code)}</td>"
    assert row in (project / "data/samples.html").read_text()
    assert counts.functions == len(of_code)
    assert counts.parsed_share == pytest.approx(counts.parsed / counts.functions, abs=1e-6)
