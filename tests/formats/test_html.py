from pathlib import Path

import pytest
from jinja2 import UndefinedError

from stages.formats.html import filled_template


def test_a_value_is_shown_as_it_is_and_one_that_is_missing_ends_the_page(tmp_path: Path) -> None:
    template = tmp_path / "page.html.jinja"
    template.write_text("<p>{{ name }}, {{ share | percent }}</p>\n")
    filters = {"percent": "{:.0%}".format}

    assert filled_template(template, filters, name="<b>", share=0.5) == "<p>&lt;b&gt;, 50%</p>\n"
    with pytest.raises(UndefinedError, match="'name' is undefined"):
        filled_template(template, filters, share=0.5)
