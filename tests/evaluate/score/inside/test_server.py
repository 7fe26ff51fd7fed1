import signal

import pytest

from stages.evaluate.score.inside.server import killed_at_its_cpu_limit, result_of


def test_a_process_killed_at_its_cpu_limit_is_seen_where_the_kernels_report_counts_less_than_its_limit() -> None:
    assert killed_at_its_cpu_limit(-signal.SIGKILL, cpu_seconds=0.7, limit=1)


def test_a_process_killed_early_or_ended_by_itself_has_not_reached_its_limit() -> None:
    assert not killed_at_its_cpu_limit(-signal.SIGKILL, cpu_seconds=0.1, limit=1)
    assert not killed_at_its_cpu_limit(0, cpu_seconds=1, limit=1)
    assert not killed_at_its_cpu_limit(-signal.SIGSEGV, cpu_seconds=1, limit=1)


@pytest.mark.parametrize("written", ["", "passed", "n0nc", "n0nce ", "n0ncen0nce", "xn0nce", "lost", "timeout", "\n"])
def test_nothing_but_the_nonce_is_a_pass_and_nothing_but_a_failure_of_its_own_is_believed(written: str) -> None:
    assert result_of("n0nce", "n0nce") == ("passed", "")
    assert result_of(written, "n0nce") is None


def test_a_failure_has_the_name_of_its_exception_if_it_is_one() -> None:
    assert result_of("exception KeyError", "n0nce") == ("exception", "KeyError")
    assert result_of("exception a b", "n0nce") == ("exception", "")
    assert result_of("assertion", "n0nce") == ("assertion", "")
