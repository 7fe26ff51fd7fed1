"""Checks, before hours of training, that `publish` may write: `python -m stages.publish.preflight`.

It makes the private, empty repositories that `publish` will fill, which answers every question of names and rights.
"""

from stages.publish.hub import open_repositories
from stages.publish.params import PublishParams
from stages.runtime.section import read_section
from stages.runtime.stage import run_stage


def main() -> None:
    """Make and check every repository that the parameters name."""
    params = read_section("publish", PublishParams)
    if params.repository is not None:
        open_repositories(params)


if __name__ == "__main__":
    run_stage(main)
