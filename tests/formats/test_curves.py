import re
from pathlib import Path

from stages.formats.curves import Panel, curves_in, draw_curves, read_curves


def test_each_column_but_the_first_is_a_curve_and_cells_that_are_no_numbers_are_left_out() -> None:
    table = "step\tloss\trate\tnever\n1\t3.5\t\t\n2\t?\t0.1\t\n3\t2.5\t0.2\t\tone too many\n"

    assert curves_in(table, "x.tsv") == {"loss": [(1.0, 3.5), (3.0, 2.5)], "rate": [(2.0, 0.1), (3.0, 0.2)]}
    assert curves_in("step,loss\n1,2\n", "x.csv") == {"loss": [(1.0, 2.0)]}
    assert curves_in("", "x.tsv") == {}


def test_a_table_that_is_not_there_has_no_curves(tmp_path: Path) -> None:
    assert read_curves(tmp_path / "none.tsv") == {}


def test_steps_are_few_whole_numbers() -> None:
    held_out = Panel(
        "held out by source", "bits per byte", {"a": [(100, 1.9), (120, 1.8)], "b": [(100, 1.8), (120, 1.7)]}
    )

    texts = re.findall(r"<text [^>]*>([^<]*)</text>", draw_curves([held_out], as_svg=True).decode())

    assert texts[: texts.index("step")] == ["100", "105", "110", "115", "120"]


def test_the_same_curves_give_the_same_picture() -> None:
    panels = [Panel("loss", "nats", {"a": [(0, 1)], "b": [(0, 2.0), (1, 1.0)]}), Panel("rate", "", {"c": [(0, 1.0)]})]

    picture = draw_curves(panels)

    assert picture == draw_curves(panels)
    assert picture != draw_curves(panels[:1])
    assert picture.startswith(b"\x89PNG")
