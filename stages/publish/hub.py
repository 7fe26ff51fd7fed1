"""Publishes to the Hugging Face Hub."""

from stages.publish.revision import Revision


def publish_to_hub(revision: Revision, repository: str, *, private: bool) -> dict[str, str]:
    raise NotImplementedError
