"""The curves that a run shows, with those of the run before in grey."""

import base64
import io

from PIL import Image

from flows.show.artifacts import with_before
from flows.show.pages import draw

NOW = [{"title": "loss", "y": "nats", "series": {"training": [(0.0, 3.0), (10.0, 1.0)], "held out": [(10.0, 2.0)]}}]
EARLIER = [{"title": "loss", "y": "nats", "series": {"training": [(0.0, 3.0), (8.0, 2.0)], "held out": [(10.0, 2.0)]}}]


def test_of_the_run_before_the_curves_that_differ_are_shown() -> None:
    (figure,) = with_before(NOW, EARLIER)

    assert figure["series"] == NOW[0]["series"]
    assert figure["before"] == {"training": [(0.0, 3.0), (8.0, 2.0)]}


def test_the_first_run_and_a_run_that_changes_nothing_have_nothing_to_compare() -> None:
    assert [figure["before"] for figure in (*with_before(NOW, []), *with_before(NOW, NOW))] == [{}, {}]


def test_they_are_drawn_in_grey() -> None:
    assert greys(draw(with_before(NOW, EARLIER))) > 2 * greys(draw(with_before(NOW, [])))


def greys(address: str) -> int:
    """Pixels of that grey in a picture; the edges of letters have a few."""
    picture = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB")
    counted = picture.getcolors(2**24) or []
    return sum(count for count, colour in counted if colour == (191, 191, 191))
