"""`report.html`, the page of the last run of this folder, which needs no other file and no network.

It is written when the run begins, before and after each stage and, while a model trains, once a minute.
"""

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flows.run.report import outcome_rows, pages_of, panel_of, shown_metrics, up_to_date
from stages.formats.curves import Panel, draw_curves, live_curves, sparkline
from stages.formats.pages import filled_template, in_digits
from stages.formats.reports import REPORTS
from stages.runtime.atomic import atomic_write

if TYPE_CHECKING:
    from flows.plan.graph import Plan, PlannedStage
    from flows.results.log import LoggedRun
    from flows.run.outcome import StageOutcome

REPORT_PAGE = Path("report.html")

PAGE_SECONDS = 60.0
"""Minimum interval between two versions of the page while a model trains, on the same processors that draw it."""


def curve_pictures(panels: Iterable[Panel]) -> list[str]:
    """Each panel as an SVG element, which is as wide as its place on the page."""
    drawn = (draw_curves([panel], as_svg=True).decode() for panel in panels)
    return [re.sub(r"^.*?<svg [^>]*?(?=viewBox)", "<svg ", text, flags=re.DOTALL) for text in drawn]


class RunPage:
    """`report.html` of one run."""

    def __init__(self, plan: "Plan", run: "LoggedRun", forecast: list[str]) -> None:
        self.plan, self.run, self.forecast = plan, run, forecast
        self.outcomes: dict[str, StageOutcome] = {}
        self.began = time.time() - 1  # the times of files are a little behind
        self._writing, self._written = threading.Lock(), time.monotonic()
        self._drawn: tuple[list[Panel], list[str]] = ([], [])

    def is_due(self) -> bool:
        """Whether the page is to be written again while a stage works; true once for each interval."""
        due = time.monotonic() - self._written > PAGE_SECONDS
        self._written = time.monotonic() if due else self._written
        return due

    def sparkline(self, stage: "PlannedStage") -> str:
        """The first curve of a stage that is at work, as a line of text."""
        live = live_curves(self.began) if stage.policy.show.curves else None
        curves = panel_of(stage.policy.show.curves[0], live).curves if live else {}
        return sparkline(next(iter(curves.values()), []))

    def write(self) -> None:
        """Write the page as it is now. Numbers and pages of stages that are not up to date are left out."""
        with self._writing:
            good = up_to_date(self.plan, self.outcomes)
            names = {stage.name for stage in good}
            reports = {name: REPORTS / f"{name}.json" for name in names}
            panels = [*self._panels(names)]
            if panels != self._drawn[0]:
                self._drawn = (panels, curve_pictures(panels))
            text = filled_template(
                Path(__file__).with_name(f"{REPORT_PAGE}.jinja"),
                {"digits": in_digits},
                run=self.run,
                metrics=shown_metrics(good),
                stages=[(*row, self._expected(row[0])) for row in outcome_rows(self.plan, self.outcomes)],
                forecast=self.forecast,
                reports={name: json.loads(path.read_bytes()) for name, path in reports.items() if path.is_file()},
                pictures=self._drawn[1],
                pages=dict(pages_of(good)),
            )
            atomic_write(REPORT_PAGE, text)

    def _panels(self, up_to_date_stages: set[str]) -> Iterator[Panel]:
        live = live_curves(self.began)
        for stage in self.plan:
            for figure in stage.policy.show.curves:
                if live or stage.name in up_to_date_stages:
                    panel = panel_of(figure, None if stage.name in up_to_date_stages else live)
                    yield from [panel] * bool(panel.curves)

    def _expected(self, name: str) -> float | None:
        return next((stage.seconds for stage in self.plan if stage.name == name), None)
