"""What the Prefect UI shows of a run besides states and times: logs and artifacts."""

import base64
import concurrent.futures
import contextlib
import io
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import (
    create_image_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.client.orchestration import get_client

from flows.run.outcome import Artifact, slug

CANCELLATION_POLL_SECONDS = 2.0

LETTERS_A_LOG = 20_000
"""Prefect Cloud cuts off an entry above 25,000 bytes."""

END_SECONDS = 20.0
"""How long a run waits at its end until its artifacts are written."""


class PrefectPages:
    """Writes artifacts in a thread of its own, so that a server that is away holds no stage up."""

    def __enter__(self) -> "PrefectPages":
        self._thread = ThreadPoolExecutor(1)
        self._written: list[concurrent.futures.Future[Any]] = []
        return self

    def __exit__(self, *error: object) -> None:
        _, left = concurrent.futures.wait(self._written, END_SECONDS)
        self._thread.shutdown(wait=not left, cancel_futures=True)

    def show(self, artifact: Artifact) -> None:
        """Write one, in the context of the flow run or task run that calls."""
        self._written.append(self._thread.submit(copy_context().run, write_artifact, artifact))


def write_artifact(artifact: Artifact) -> None:
    """Write an artifact by Prefect's functions."""
    about: dict[str, Any] = {"key": slug(artifact.key), "description": artifact.description}
    match artifact.kind:
        case "table":
            create_table_artifact(artifact.data, **about)
        case "curves":
            create_image_artifact(draw(artifact.data), **about)
        case "markdown":
            create_markdown_artifact(artifact.data, **about)


def draw(figures: list[dict[str, Any]]) -> str:
    """Figures with their points (`flows.pipeline_run.read_curves`) as a PNG in a data URL."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(
        1, len(figures), figsize=(5 * len(figures), 3.6), layout="constrained", squeeze=False
    )
    for axis, figure in zip(axes[0], figures, strict=True):
        for label, points in figure["series"].items():
            steps, values = zip(*points, strict=True)
            axis.plot(steps, values, label=label, marker="" if len(points) > 20 else "o", markersize=4)
        axis.set(title=figure["title"], xlabel="step", ylabel=figure["y"])
        if len(figure["series"]) > 1:
            axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    canvas.savefig(picture, format="png", dpi=110)
    pyplot.close(canvas)
    return f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"


class StagePages:
    """The log of one stage's task run, written from the stage's thread."""

    def __init__(self) -> None:
        self._logger = get_run_logger()

    def lines(self, texts: Sequence[str]) -> None:
        """Log lines without waiting, those printed at once in one entry: each costs as much as thousands of letters."""
        entry: list[str] = []
        letters = 0
        for text in texts:
            if entry and letters + len(text) > LETTERS_A_LOG:
                self._logger.info("%s", "\n".join(entry))
                entry, letters = [], 0
            entry.append(text)
            letters += len(text)
        self._logger.info("%s", "\n".join(entry))


def watch_for_cancellation(id_: UUID, stop: Callable[[], None]) -> None:
    """Call `stop`, in a thread, once somebody cancels a flow run that no worker looks after."""

    def watch() -> None:
        while True:
            time.sleep(CANCELLATION_POLL_SECONDS)
            with contextlib.suppress(Exception), get_client(sync_client=True) as client:
                state = client.read_flow_run(id_).state
                if state is not None and (state.is_cancelling() or state.is_cancelled()):
                    stop()
                if state is not None and (state.is_cancelling() or state.is_final()):
                    return

    threading.Thread(target=watch, daemon=True).start()
