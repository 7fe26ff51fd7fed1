"""Reports that DVC and people read: JSON for metrics, the same bytes for the same values."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from stages.runtime.atomic import atomic_write

REPORTS = Path("reports")


def write_json(path: Path, values: Any) -> None:
    """Write JSON with sorted keys, two spaces, a final newline; NaN and infinities are refused (RFC 8259)."""
    atomic_write(path, json.dumps(values, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def parse_json(text: str | bytes) -> Any:
    """JSON that people wrote. Raises ValueError also where a key is there twice: only one of its values would count."""
    return json.loads(text, object_pairs_hook=_keys_once)


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key `{repeated}` is there twice")
    return values


def read_json(path: Path) -> Any:
    """Read a JSON report."""
    return json.loads(path.read_text(encoding="utf-8"))
