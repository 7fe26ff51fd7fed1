"""What a reader of a paper expects of a table: n, which interval, what is missing."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from flows.experiments.forms import escape_tex, markdown, printed, tex
from flows.experiments.runs import tidy
from flows.experiments.statistics import estimate, paired_difference
from flows.experiments.tables import Entry, Table, differences_table, means_table
from stages.runtime.errors import UserError
from tests.flows.experiments.small_experiment import small_experiment
from tests.flows.experiments.some_runs import finished, some_data


def entry_at(table: Table, row: str, column: str) -> Entry:
    """The entry of a row and of the first column whose heading begins so."""
    line = [", ".join(levels) for levels in table.rows].index(row)
    return table.entries[line][[heading.startswith(column) for heading in table.columns].index(True)]


def losses(folder: Path, **levels: str) -> list[float]:
    return some_data(folder).select(levels)["loss"].tolist()


def test_an_entry_is_the_mean_of_the_seeds_with_its_spread(tmp_path: Path) -> None:
    main = means_table(some_data(tmp_path), "main")
    found = estimate(losses(tmp_path, size="w2", recipe="a"))

    entry = entry_at(main, "w2, a", "loss (nats)")
    assert (entry.n, entry.expected) == (3, 3)
    assert found.high is not None
    assert printed(entry).startswith(f"{found.mean:.2f} ± {found.high - found.mean:.2f} [{found.mean - 0.5:.2f}, ")
    assert printed(entry_at(main, "w2, a", "cost")) == "4.0"  # equal in all seeds: no spread
    assert "95 % interval of the mean over seeds, by Student's t; n = 3 seeds (0, 1, 2)." in main.footnotes[0]
    assert "the runs' own 95 % interval" in main.footnotes[1]


def test_an_interval_without_width_which_older_records_have_is_not_printed(tmp_path: Path) -> None:
    experiment, cells = small_experiment(tmp_path)
    reports = {"scores.json": {"loss": 0.0, "interval": [0.0, 0.0], "cost": 1.0}}

    data = tidy("some", experiment, cells, [finished(cells[0]).model_copy(update={"reports": reports})])

    assert data.frame[["loss low", "loss high"]].isna().all(axis=None)


def test_a_metric_without_decimals_has_three_or_none_if_its_numbers_are_whole(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    data.experiment.metrics["cost"] = data.experiment.metrics["cost"].model_copy(update={"decimals": None})

    assert printed(entry_at(means_table(data, "main"), "w8, a", "cost")) == "64"
    data.frame.loc[0, "cost"] = 1.5
    assert printed(entry_at(means_table(data, "main"), "w8, a", "cost")) == "64.000"


def test_missing_runs_are_counted_at_their_entry_and_named_below(tmp_path: Path) -> None:
    data = some_data(tmp_path, lacking=[0, 3, 4, 5])
    data.frame.loc[1, "cost"] = math.nan
    main = means_table(data, "main")

    assert printed(entry_at(main, "w1, a", "loss")).endswith(" (2/3)")
    assert printed(entry_at(main, "w1, b", "loss")) == "— (0/3)"
    assert main.footnotes[-1] == (
        "Runs that are missing: w1, a, seed 0 (failed: no luck); w1, a, seed 1 (no scores.json:cost); "
        "w1, b, seed 0, 1, 2 (failed: no luck)."
    )


def test_differences_are_paired_by_seed_and_corrected_together(tmp_path: Path) -> None:
    data = some_data(tmp_path, lacking=[0])
    table = differences_table(data, "recipes")
    expected = paired_difference(losses(tmp_path, size="w2", recipe="b"), losses(tmp_path, size="w2", recipe="a"))

    entry, p = (entry_at(table, "w2, b", column) for column in ("Δ loss (nats)", "p of"))
    assert table.row_headings == ["size", "recipe"]
    assert (expected.mean, entry.n) == (pytest.approx(-0.3), 3)
    assert re.fullmatch(r"-0\.30 \[-0\.30, -0\.30\] \(-\d\.\d %\)", printed(entry))
    assert p.text == "<0.001"
    assert printed(entry_at(table, "w1, b", "Δ")).endswith("(2/3)")
    assert "Holm-corrected for 4 differences" in table.footnotes[0]


@pytest.mark.parametrize(
    ("p", "text"), [(0.0004, "<0.001"), (0.0124, "0.012"), (0.04996, "0.04996"), (0.0504, "0.050")]
)
def test_a_p_value_is_never_rounded_to_the_other_side_of_the_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, p: float, text: str
) -> None:
    data = some_data(tmp_path)
    # Two pairs whose differences have this p: of one degree of freedom, t = cot(p pi / 2).
    spread = 1 / math.tan(p * math.pi / 2)
    rows = data.frame[data.frame["size"].eq("w1") & data.frame["seed"].lt(2)].copy()
    rows["size"] = rows["size"].cat.remove_unused_categories()
    rows["loss"] = [5.0, 5.0, 5.0 + (spread + 1) / 100, 5.0 + (spread - 1) / 100]

    table = differences_table(replace(data, frame=rows), "recipes")

    assert entry_at(table, "w1, b", "p of").text == text


def test_a_difference_in_percent_of_a_negative_baseline_has_the_differences_sign(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    frame = data.frame.assign(loss=[-2.0 if recipe == "a" else -1.9 for recipe in data.frame["recipe"]])

    table = differences_table(replace(data, frame=frame), "recipes")

    assert printed(entry_at(table, "w2, b", "Δ")) == "+0.10 [+0.10, +0.10] (+5.0 %)"


def test_a_table_that_would_average_different_cells_is_refused(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    data.experiment.tables["main"] = data.experiment.tables["main"].model_copy(update={"rows": ["size"]})

    with pytest.raises(UserError, match=r"tables\.main: the row w1 mixes several levels of recipe"):
        means_table(data, "main")


def both_tables(folder: Path) -> list[Table]:
    data = some_data(folder, lacking=[0, 3, 4, 5])
    return [means_table(data, "main"), differences_table(data, "recipes")]


def test_latex_is_balanced_has_as_many_columns_as_it_says_and_no_character_that_needs_escaping(tmp_path: Path) -> None:
    for table in both_tables(tmp_path):
        text = tex(table)
        opened = []
        for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
            assert kind == "begin" or opened.pop() == name
            opened += [name] if kind == "begin" else []
        assert opened == []
        assert text.count("{") == text.count("}")
        width = len(re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)[1])  # type: ignore[index]
        body = re.search(r"\\toprule\n(.*)\\bottomrule", text, re.DOTALL)[1]  # type: ignore[index]
        for line in body.splitlines():
            if line.endswith("\\\\"):
                assert len(re.findall(r"(?<!\\)&", line)) + 1 == width
        assert "All \\& every run." in text or table.name != "main"
        plain = re.sub(r"\$\\(pm|Delta)\$|\$-\$|\\.|%.*\n", "", text, count=0)
        assert not re.search(r"[%$#_~^<>]", re.sub(r"tab:[\w-]+", "", plain))
        assert plain.isascii()


def test_markdown_has_a_line_for_each_row_with_its_entries(tmp_path: Path) -> None:
    for table in both_tables(tmp_path):
        lines = markdown(table).splitlines()
        for levels, entries in zip(table.rows, table.entries, strict=True):
            assert f"| {' | '.join([*levels, *map(printed, entries)])} |" in lines


def test_any_text_is_escaped_for_latex() -> None:
    assert escape_tex("a\n\nb \u0394 \u00b5") == "a b $\\Delta$ $\\mu$"
    assert escape_tex(r"50 % of a_b & \x {y} ~ ^ # $") == (
        r"50 \% of a\_b \& \textbackslash{}x \{y\} \textasciitilde{} \textasciicircum{} \# \$"
    )


def test_no_row_is_an_argument_of_the_line_break_before_it(tmp_path: Path) -> None:
    data = some_data(tmp_path)
    data.frame["size"] = data.frame["size"].cat.rename_categories(lambda size: f"[{size}]")

    assert tex(means_table(data, "main")).count("\n    {}[w") == 8
