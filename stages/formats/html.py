"""HTML for people, from a template in the folder of the code that fills it.

A page has no script and needs no other file, so it opens from its folder, and in the views of DVC and Prefect. The
template escapes every value (Jinja2's autoescape): names and texts come from corpora, problem sets and models.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def filled_template(template: Path, filters: dict[str, Callable[..., str]], **values: Any) -> str:
    """The page. `filters` are the formats that the template uses; a value that it uses and lacks is an error."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= filters
    return environment.get_template(template.name).render(values)
