"""The pages about runs, without external files or network: `report.html` and `compare.html`.

`report.html` describes the last run of this folder. It is written when the run begins, with each stage, and regularly
while stages report progress.
"""

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.run.report import outcome_rows, pages_of, panel_of, shown_metrics, up_to_date
from stages.formats.curves import Panel, draw_curves, live_curves, sparkline
from stages.formats.evaluation.generation import SAMPLES_HTML
from stages.formats.pages import filled_template, in_digits
from stages.formats.reports import REPORTS
from stages.runtime.atomic import atomic_write

if TYPE_CHECKING:
    from flows.plan.graph import Plan, PlannedStage
    from flows.results.log import LoggedRun
    from flows.run.outcome import StageOutcome
    from flows.run.terminal import Terminal

REPORT_PAGE = Path("report.html")

MAX_SHADED, MAX_SHADED_LETTERS = 4, 20_000
"""Samples on the page, and the letters of HTML of each."""


def curve_pictures(panels: Iterable[Panel]) -> list[str]:
    """Each panel as an SVG element that takes the available width."""
    drawn = (draw_curves([panel], as_svg=True).decode() for panel in panels)
    return [re.sub(r"^.*?<svg [^>]*?(?=viewBox)", "<svg ", text, flags=re.DOTALL) for text in drawn]


def write_page(page: Path, **values: Any) -> None:
    """Write a page from the template with its name, next to this module."""
    template = Path(__file__).with_name(f"{page.name}.jinja")
    atomic_write(page, filled_template(template, {"digits": in_digits}, **values))


class RunPage:
    """`report.html` of a run."""

    def __init__(self, plan: "Plan", run: "LoggedRun", forecast: list[str], terminal: "Terminal") -> None:
        self.plan, self.run, self.forecast, self.terminal = plan, run, forecast, terminal
        self.outcomes: dict[str, StageOutcome] = {}
        self.began = time.time() - 1  # file times lag a little
        self._writing, self._written, self._took = threading.Lock(), 0.0, 0.0
        self._drawn: tuple[list[Panel], list[str]] = ([], [])

    @property
    def is_outdated(self) -> bool:
        """True if the page may be written again: to save time for training, in at most 2 % of the time."""
        return time.monotonic() - self._written > 50 * self._took

    def sparkline(self, stage: "PlannedStage") -> str:
        """The first curve of a running stage as a line of text."""
        live = live_curves(self.began) if stage.policy.show.curves else None
        curves = panel_of(stage.policy.show.curves[0], live).curves if live else {}
        return sparkline(next(iter(curves.values()), []))

    def write(self) -> None:
        """Write the page, without numbers and pages of stages that are not up to date."""
        with self._writing:
            begin = self._written = time.monotonic()
            at_work = {name: self.terminal.progress.get(name, "running") for name in [*self.terminal.started_at]}
            good = up_to_date(self.plan, self.outcomes)
            names = {stage.name for stage in good}
            reports, pages = {name: REPORTS / f"{name}.json" for name in names}, dict(pages_of(good))
            shaded = SAMPLES_HTML.read_text(encoding="utf-8") if str(SAMPLES_HTML) in pages.values() else ""
            panels = [*self._panels(names)]
            if panels != self._drawn[0]:
                self._drawn = (panels, curve_pictures(panels))
            write_page(
                REPORT_PAGE,
                run=self.run,
                began=datetime.fromisoformat(self.run.began).astimezone(),
                now=datetime.now().astimezone(),
                metrics=shown_metrics(good),
                stages=[*outcome_rows(self.plan, self.outcomes)],
                at_work=at_work,
                expected={stage.name: stage.seconds for stage in self.plan},
                forecast=self.forecast,
                reports={name: json.loads(path.read_bytes()) for name, path in reports.items() if path.is_file()},
                pictures=self._drawn[1],
                shaded=shaded_samples(shaded),
                pages=pages,
            )
            self._written = time.monotonic()
            self._took = self._written - begin

    def _panels(self, up_to_date_stages: set[str]) -> Iterator[Panel]:
        live = live_curves(self.began)
        for stage in self.plan:
            for figure in stage.policy.show.curves:
                if live or stage.name in up_to_date_stages:
                    panel = panel_of(figure, None if stage.name in up_to_date_stages else live)
                    yield from [panel] * bool(panel.curves)


def shaded_samples(page: str) -> tuple[str, list[str]]:
    """The style and a few texts of the page of samples, as HTML; texts that are complete and parse come first."""
    style = "\n".join(re.findall(r"^(?:\.s\d|pre|b|i) \{.*\}$", page, re.MULTILINE))
    texts = re.findall(r"<section>.*?</section>", page, re.DOTALL)
    short = [text for text in texts if len(text) < MAX_SHADED_LETTERS]
    return style, sorted(short, key=lambda text: "complete, parses" not in text)[:MAX_SHADED]
