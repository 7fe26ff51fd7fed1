"""A table in three forms from one source: LaTeX (booktabs), Markdown and CSV."""

import re
from pathlib import Path
from unicodedata import name as character_name

import pandas as pd

from flows.experiments.tables import Entry, Table
from stages.formats.pages import escape as escape_markdown
from stages.runtime.atomic import atomic_write

GREEK = {
    letter: words[-1].lower() if "SMALL" in words else words[-1].capitalize()
    for letter, words in ((letter, character_name(letter).split()) for letter in "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ")
}
"""Letters for which LaTeX has a command, with its name; `lamda` is Unicode's spelling."""
GREEK |= {"λ": "lambda", "Λ": "Lambda"}

LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "±": "$\\pm$",
    "\u2212": "$-$",
    "—": "---",
    "µ": "$\\mu$",
    "\u00d7": "$\\times$",
    "·": "$\\cdot$",
    "≤": "$\\leq$",
    "≥": "$\\geq$",
    "≈": "$\\approx$",
    **{letter: f"$\\{name}$" for letter, name in GREEK.items()},
}
"""What pdfLaTeX would not print as it is. Other alphabets need XeLaTeX or LuaLaTeX, with a font that has them."""

FORMS = ("tex", "md", "csv")


def write_forms(folder: Path, table: Table) -> list[Path]:
    """Write all forms into the folder."""
    paths = [folder / f"{table.name}.{form}" for form in FORMS]
    for path, text in zip(paths, (tex(table), markdown(table), table_csv(table)), strict=True):
        atomic_write(path, text)
    return paths


def printed(entry: Entry) -> str:
    """An entry in one line, without its mark: `1.51 ± 0.02 (2/3)`."""
    count = f"({entry.n}/{entry.expected})" if entry.n < entry.expected else ""
    return " ".join(filter(None, (entry.text or "—", entry.spread, entry.extra, count)))


def markdown(table: Table) -> str:
    """A Markdown table with its caption above and its footnotes below; the best in bold."""

    def text(entry: Entry) -> str:
        plain = printed(entry)
        return f"**{entry.text}**{plain[len(entry.text) :]}" if entry.best else plain

    titles = [*map(escape_markdown, table.row_headings), *map(escape_markdown, table.columns)]
    lines = [titles, ["---"] * len(table.row_headings) + ["--:"] * len(table.columns)]
    for levels, entries in zip(table.rows, table.entries, strict=True):
        lines.append([*map(escape_markdown, levels), *(text(entry).replace("|", "\\|") for entry in entries)])
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    notes = "".join(f"\n{escape_markdown(note)}\n" for note in table.footnotes)
    return f"{escape_markdown(table.caption)}\n\n{body}{notes}"


def table_csv(table: Table) -> str:
    """Numbers for programs, in full: for each column the value, sd, bounds of the interval, n and the mark."""
    parts = ("value", "sd", "low", "high", "n", "expected", "best")
    headings = [*table.row_headings, *(f"{column} {part}" for column in table.columns for part in parts)]
    lines = [
        [*levels, *(getattr(entry, part) for entry in entries for part in parts)]
        for levels, entries in zip(table.rows, table.entries, strict=True)
    ]
    return str(pd.DataFrame(lines, columns=headings).to_csv(index=False, lineterminator="\n"))


def tex(table: Table) -> str:
    """A LaTeX table; the document needs \\usepackage{booktabs}."""
    names, label = len(table.row_headings), f"{table.experiment}-{table.name}".replace("_", "-")
    lines = [
        f"% Each entry leads to its runs: parrotflow cell {table.experiment}/{table.name} ROW COLUMN ({table.size})",
        "\\begin{table}[t]",
        "  \\centering",
        f"  \\caption{{{escape_tex(table.caption)}}}",
        f"  \\label{{tab:{label}}}",
        f"  \\begin{{tabular}}{{{'l' * names}{'r' * len(table.columns)}}}",
        "    \\toprule",
    ]
    titles = [*table.row_headings, *table.columns]
    lines += [f"    {' & '.join(map(escape_tex, titles))} \\\\", "    \\midrule"]
    for levels, entries in zip(table.rows, table.entries, strict=True):
        line = " & ".join([*map(escape_tex, levels), *map(_tex_entry, entries)])
        first = "{}" if line.startswith(("[", "*")) else ""  # else an argument of the line break before it
        lines.append(f"    {first}{line} \\\\")
    notes = [f"    {escape_tex(note)}" for note in table.footnotes]
    lines += ["    \\bottomrule", "  \\end{tabular}", "  \\par\\smallskip"]
    lines += ["  \\begin{minipage}{0.95\\linewidth}\\footnotesize", *notes, "  \\end{minipage}"]
    return "\n".join([*lines, "\\end{table}", ""])


def _tex_entry(entry: Entry) -> str:
    text = escape_tex(printed(entry))
    if entry.text and text.startswith(entry.text):
        own = re.sub(r"^-", "$-$", entry.text)
        text = (f"\\textbf{{{own}}}" if entry.best else own) + text[len(entry.text) :]
    return re.sub(r"(?<=[\[ ])-(?=\d)|(?<=\()-(?=\d)", "$-$", text)


def escape_tex(text: str) -> str:
    """The text in one paragraph, with LaTeX's special characters escaped."""
    return "".join(LATEX.get(character, character) for character in re.sub(r"\s+", " ", text))
