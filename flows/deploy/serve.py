"""`parrotflow serve`: the deployments of prefect.yaml on one machine, without a work pool and a worker."""

from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

PREFECT_YAML = Path("prefect.yaml")


def deployments_without_a_pool() -> list[dict[str, Any]]:
    """Those of prefect.yaml less what has steps for a pool's worker: its flow runs are looked for in a pool."""
    entries = yaml.safe_load(PREFECT_YAML.read_text(encoding="utf-8"))["deployments"]
    return [entry for entry in entries if "pull" not in entry]


def serve_deployments() -> None:
    """Serve the deployments of prefect.yaml until stopped."""
    from prefect import serve

    prepared: list[Any] = []
    for entry in deployments_without_a_pool():
        schedule = (entry.get("schedules") or [{}])[0]
        file, _, name = entry["entrypoint"].partition(":")
        flow = getattr(import_module(".".join(Path(file).with_suffix("").parts)), name)
        prepared.append(
            flow.to_deployment(
                entry["name"],
                cron=schedule.get("cron"),
                interval=schedule.get("interval"),
                description=entry.get("description"),
                parameters=entry.get("parameters"),
                concurrency_limit=entry.get("concurrency_limit", {}).get("limit"),
            )
        )
    serve(*prepared)
