"""Run pytest; then run each test that failed once more, alone. `make test` calls it with pytest's options.

A test that passes the second time is flaky: it is named in the last line, and the suite is green. Everything else that
ends pytest with an error (a collection error, an interrupt, a crash of pytest itself) is red at once.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

TESTS_FAILED = 1
"""Exit code of pytest if it ran to its end and some tests failed."""

MOST_REPEATED = 20
"""With more failures something is broken, and one after another they would take hours."""


def run_suite(options: list[str]) -> int:
    """Return pytest's exit code, or 0 if every test that failed passes when it runs alone."""
    with TemporaryDirectory() as folder:
        # A cache of this run only: with an older one, the second run could repeat the failures of another day.
        cache = Path(folder) / "cache"
        pytest = [sys.executable, "-m", "pytest", *options, "-o", f"cache_dir={cache}"]
        code = subprocess.run(pytest, check=False).returncode
        recorded = cache / "v/cache/lastfailed"
        if code != TESTS_FAILED or not recorded.exists():
            return code
        failed = sorted(json.loads(recorded.read_text()))
        if not all("::" in name for name in failed):
            print("red: the tests could not be collected")
            return code
        if len(failed) > MOST_REPEATED:
            print(f"red: {len(failed)} tests failed, too many to be flaky")
            return code
        print(f"\nOnce more, one after another, the tests that failed ({len(failed)}):", flush=True)
        report = Path(folder) / "report.xml"
        alone = ["--last-failed", "--last-failed-no-failures", "none", "-n", "0", f"--junitxml={report}"]
        code = subprocess.run([*pytest, *alone], check=False).returncode
        if code == 0 and (passed := _passed(report)) != len(failed):
            print(f"red: {passed} of the {len(failed)} tests that failed passed when they ran alone")
            code = TESTS_FAILED
        if code == 0:
            print(f"green, but {len(failed)} flaky (failed, then passed alone): {', '.join(failed)}")
        return code


def _passed(report: Path) -> int:
    """Count the tests that passed; a skipped one did not."""
    return sum(len(case) == 0 for case in ElementTree.parse(report).iter("testcase"))


if __name__ == "__main__":
    sys.exit(run_suite(sys.argv[1:]))
