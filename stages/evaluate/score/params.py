"""How generated code is scored, and whether it is run at all."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from stages.runtime.section import Section, value_at


class Limits(Section):
    """Limits of one program, a candidate and its tests."""

    cpu_seconds: Annotated[int, Field(ge=1, le=3600)]
    """Processor time. It does not depend on what else the machine does, so a verdict rarely does either."""
    wall_seconds: Annotated[float, Field(gt=0, le=7200)]
    """Wall-clock time, for candidates that wait. Set it well above `cpu_seconds`."""
    memory_megabytes: Annotated[int, Field(ge=128, le=1_000_000)]
    """Address space (RLIMIT_AS), Python's own 40 MB included."""


class ScoreParams(Section):
    """The section `score` of params.yaml."""

    run_generated_code: bool
    """Run what the model wrote, in a sandbox (Linux with bubblewrap). False: the completions are counted only."""
    k: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    """pass@k is reported for these k. Each needs at least k samples of every problem."""
    limits: Limits
    """Limits on one candidate."""

    def check(self, others: Mapping[str, Any]) -> Iterator[str]:
        """Each problem has as many samples as the largest k."""
        problems = value_at(others, "generate.problems")
        if self.run_generated_code and problems and problems["sets"] and max(self.k) > problems["samples"]:
            yield f"score.k = {self.k}: generate.problems.samples = {problems['samples']}; lower k or raise samples"
