"""What the run and the process that forks DVC say to each other."""

from dataclasses import dataclass, field

END = "\0end "
"""Before DVC's exit code, in the last message of a stage's process; one without such a message was killed."""


@dataclass(frozen=True, slots=True)
class Request:
    """Bring one stage up to date."""

    stage: str
    folder: str = ""
    """The project's folder, where it is not that of the run."""
    force: bool = False
    pull: bool = False
    check_cache: bool = False
    """Whether its result may come from DVC's cache, so that damaged entries are to be dropped first."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables to set for this stage; None removes one."""


@dataclass(frozen=True, slots=True)
class StageProcess:
    """A stage that is being brought up to date. It leads a session and a process group of its own."""

    pid: int
    output: int
    """Descriptor of what the stage's command prints."""
    messages: int
    """Descriptor of what DVC itself prints; at its end the process has ended."""
