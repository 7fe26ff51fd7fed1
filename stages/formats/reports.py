"""Reports that DVC and people read: JSON for metrics, the same bytes for the same values."""

import json
from pathlib import Path
from typing import Any

from stages.runtime.atomic import atomic_write

REPORTS = Path("reports")


def write_json(path: Path, values: Any) -> None:
    """Write JSON with sorted keys, two spaces, a final newline; NaN and infinities are refused (RFC 8259)."""
    atomic_write(path, json.dumps(values, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON report."""
    return json.loads(path.read_text(encoding="utf-8"))
