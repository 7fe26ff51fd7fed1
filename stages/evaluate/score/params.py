"""The section `score` of params.yaml."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from stages.runtime.section import Section, value_at


class Limits(Section):
    """Limits of one program: a candidate and its tests."""

    cpu_seconds: Annotated[int, Field(ge=1, le=3600)]
    """Processor time, which hardly depends on other load of the machine."""
    wall_seconds: Annotated[float, Field(gt=0, le=7200)]
    """Wall-clock time, for candidates that wait. Set it well above `cpu_seconds`."""
    memory_megabytes: Annotated[int, Field(ge=128, le=1_000_000)]
    """Address space (RLIMIT_AS), including 40 MB for Python."""


class ScoreParams(Section):
    """The section `score` of params.yaml."""

    run_generated_code: bool
    """Run generated code in a sandbox (Linux with bubblewrap). False: completions are only counted."""
    k: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    """pass@k is reported for these k. Each needs at least k samples of every problem."""
    limits: Limits
    """Limits of each candidate."""

    def check(self, others: Mapping[str, Any]) -> Iterator[str]:
        """Check that each problem has as many samples as the largest k."""
        problems = value_at(others, "generate.problems")
        if self.run_generated_code and problems and problems["sets"] and max(self.k) > problems["samples"]:
            yield f"score.k = {self.k}: generate.problems.samples = {problems['samples']}; lower k or raise samples"
