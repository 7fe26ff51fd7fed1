"""How the steps until a checkpoint were executed, and what the checkpoints before it held.

Every checkpoint carries it in its manifest, as it carries the curves. So a run that continues takes up the history of
the checkpoint that it continues from: what a killed run did after that is computed again and never counted.
"""

from dataclasses import dataclass, field

from stages.formats.revision.execution import Session


@dataclass(frozen=True)
class History:
    """The sessions of a run, and the content of its checkpoints, also of those that are deleted by now."""

    sessions: list[Session] = field(default_factory=list)
    contents: dict[int, str] = field(default_factory=dict)
    """Step -> `content_sha256` of its checkpoint. Steps are missing where no checkpoint could be written."""

    def sessions_until(self, step: int) -> list[Session]:
        """The sessions that computed the steps 1 to `step`, the last one cut there; none that computed no step."""
        return [
            session.model_copy(update={"last_step": min(session.last_step, step)})
            for session in self.sessions
            if session.first_step <= step
        ]
