"""The progress of a run: one line that is updated in a terminal, a line now and then in a log."""

import sys
import time

LOG_SECONDS = 10.0
"""Between two lines in a log."""


class ProgressLine:
    """Step, loss, speed and the time that remains."""

    def __init__(self, max_steps: int, enabled: bool) -> None:
        self.max_steps = max_steps
        self.enabled = enabled
        self.live = sys.stdout.isatty()
        self._last = float("-inf")

    def show(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """Show the state after `step` steps; in a log at most every `LOG_SECONDS`."""
        now = time.monotonic()
        last_step = step == self.max_steps
        if not self.enabled or (not self.live and now - self._last < LOG_SECONDS and not last_step):
            return
        self._last = now
        remaining = time.strftime("%H:%M:%S", time.gmtime(seconds_left))
        text = f"step {step}/{self.max_steps}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  {remaining} left"
        end = "\n" if last_step or not self.live else ""
        print(f"\r{text}\x1b[K" if self.live else text, end=end, flush=True)
