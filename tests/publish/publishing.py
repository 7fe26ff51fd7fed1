"""Publishing with all that comes before it in the pipeline."""

from stages.card.__main__ import main as card
from stages.publish.__main__ import main as publish


def main() -> None:
    """Write the card, and publish."""
    card()
    publish()
