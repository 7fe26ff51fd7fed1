"""Which licences a document may have: SPDX expressions against an allow-list."""

from collections.abc import Collection
from functools import cache
from importlib.metadata import Distribution
from typing import Any

from license_expression import Licensing

LICENSING = Licensing()

CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "LicenseRef-BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""Trove classifiers -> SPDX, for packages without an expression. `BSD License` does not say which BSD licence."""


def package_license(package: Distribution) -> str:
    """A package's licence as an SPDX expression: its own (PEP 639), else from its classifiers, else empty."""
    metadata = package.metadata
    if "License-Expression" in metadata:
        return str(metadata["License-Expression"])
    classifiers = [line.split(" :: ") for line in metadata.get_all("Classifier") or []]
    names = {parts[-1] for parts in classifiers if parts[0] == "License" and parts[-1] != "OSI Approved"}
    known = [CLASSIFIERS.get(name, "") for name in sorted(names)]
    return " AND ".join(known) if all(known) else ""


@cache
def _parsed(expression: str) -> Any:
    try:
        return LICENSING.parse(expression)
    except Exception:  # the library raises bare ones besides its own
        return None


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Whether an SPDX expression can be met with allowed licences alone.

    `A OR B` needs one of them, `A AND B` both; `A WITH exception` passes as A (an exception only adds permissions)
    or where it is allowed by its full name. Anything that is no expression is not allowed.
    """
    parsed = _parsed(expression)
    return parsed is not None and _is_met(parsed, allowed)


def _is_met(node: Any, allowed: Collection[str]) -> bool:
    if isinstance(node, LICENSING.OR):
        return any(_is_met(part, allowed) for part in node.args)
    if isinstance(node, LICENSING.AND):
        return all(_is_met(part, allowed) for part in node.args)
    base = getattr(node, "license_symbol", node)
    return node.render() in allowed or base.render() in allowed
