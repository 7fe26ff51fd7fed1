import signal

from stages.evaluate.score.inside.server import killed_at_its_cpu_limit


def test_a_process_killed_at_its_cpu_limit_is_seen_where_the_kernels_report_counts_less_than_its_limit() -> None:
    assert killed_at_its_cpu_limit(-signal.SIGKILL, cpu_seconds=0.7, limit=1)


def test_a_process_killed_early_or_ended_by_itself_has_not_reached_its_limit() -> None:
    assert not killed_at_its_cpu_limit(-signal.SIGKILL, cpu_seconds=0.1, limit=1)
    assert not killed_at_its_cpu_limit(0, cpu_seconds=1, limit=1)
    assert not killed_at_its_cpu_limit(-signal.SIGSEGV, cpu_seconds=1, limit=1)
