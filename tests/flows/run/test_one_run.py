"""Stages on real runs: retries, timeouts, resources, refusals, secrets, as `meta.flow` says."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stages.runtime.errors import EXIT_CONTINUE, EXIT_REFUSED
from tests.flows.test_pipeline import COMMAND, environment, processes_in, run, toy
from tests.flows.toy import dvc
from tests.waiting import wait_until

FLAKY = """\
stages:
  fetch:
    cmd: sh fetch.sh
    outs: [data.txt]
    meta: {flow: {retries: 2, retry_delay_seconds: 0}}
"""


@pytest.mark.parametrize(("exit_code", "tries"), [(2, 1), (69, 3)])
def test_a_mistake_is_not_tried_again_and_retries_end(tmp_path: Path, exit_code: int, tries: int) -> None:
    folder = toy(tmp_path / "toy", FLAKY)
    (folder / "fetch.sh").write_text(f"echo try >> tries\necho 'error: no answer' >&2\nexit {exit_code}\n")

    result = run(folder)

    assert result.returncode == 1
    assert (folder / "tries").read_text() == "try\n" * tries
    assert result.stdout.count("no answer") == tries + 1  # the summary


def test_data_of_dvc_add_that_is_not_here_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  copy: {cmd: cp in.txt out.txt, deps: [in.txt], outs: [out.txt]}\n")
    (folder / "in.txt").write_text("a\n")
    dvc(folder, "add", "in.txt")
    (folder / "in.txt").unlink()
    shutil.rmtree(folder / ".dvc/cache")

    result = run(folder)

    assert result.returncode == 2
    assert "error: in.txt.dvc: its data is missing: run `parrotflow run --pull` or `dvc checkout`" in result.stderr


REFUSING = """\
stages:
  publish: {cmd: "sh publish.sh && cp value.txt receipt.txt", deps: [value.txt], outs: [receipt.txt]}
  announce: {cmd: cp receipt.txt announced.txt, deps: [receipt.txt], outs: [announced.txt]}
"""


def test_a_stage_that_refuses_its_input_and_those_after_it_are_left_out_and_the_run_ends_as_the_stage_did(
    tmp_path: Path,
) -> None:
    folder = toy(tmp_path / "toy", REFUSING)
    (folder / "value.txt").write_text("2.5")
    (folder / "publish.sh").write_text("grep -q 1.5 value.txt || { echo 'error: 2.5 is above the limit'; exit 77; }")

    result = run(folder)

    assert result.returncode == EXIT_REFUSED, result.stdout + result.stderr
    assert "2.5 is above the limit" in result.stdout
    assert not (folder / "announced.txt").exists()

    (folder / "value.txt").write_text("1.5")
    assert run(folder).returncode == 0
    assert (folder / "announced.txt").read_text() == "1.5"


SHARING = """\
stages:
  first: {cmd: sh alone.sh first, outs: [first.txt], meta: {flow: {resources: [accelerator]}}}
  second: {cmd: sh alone.sh second, outs: [second.txt], meta: {flow: {resources: [accelerator, disk]}}}
  third: {cmd: sh alone.sh third, outs: [third.txt], meta: {flow: {resources: [accelerator]}}}
"""


def test_stages_that_share_a_resource_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_STAGES_AT_ONCE", "3")
    folder = toy(tmp_path / "toy", SHARING)
    (folder / "alone.sh").write_text("mkdir taken || exit 2\nsleep 0.5\nrmdir taken\necho 1 > $1.txt\n")

    result = run(folder)

    assert result.returncode == 0, result.stdout


STOPPED = """\
stages:
  slow: {cmd: touch began.txt && sleep 600, outs: [slow.txt]}
  flaky: {cmd: exit 69, outs: [flaky.txt], meta: {flow: {retries: 1, retry_delay_seconds: 600}}}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_stages_also_one_that_waits_for_its_retry_and_the_run_says_so(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = toy(tmp_path / "toy", STOPPED)
    # Programs that a shell starts in the background ignore Ctrl-C, those of nohup SIGHUP, and so would this one.
    command = ["env", "--default-signal=INT,HUP", *COMMAND]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    next(line for line in process.stdout if "next attempt in 600 s" in line)
    wait_until((folder / "began.txt").exists)

    process.send_signal(number)
    said, _ = process.communicate()

    assert process.returncode == EXIT_CONTINUE
    assert "slow   stopped" in said
    assert "\nstopped; run the same command to continue\n" in said
    wait_until(lambda: processes_in(folder) == [])


TWO = """\
stages:
  flaky:
    cmd: sh flaky.sh
    outs: [flaky.txt]
    meta: {flow: {retries: 1, retry_delay_seconds: 3}}
  other: {cmd: date +%s.%N > other.txt && sleep 1, outs: [other.txt]}
"""


def test_a_stage_that_waits_for_its_retry_holds_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARROTFLOW_STAGES_AT_ONCE", "1")
    folder = toy(tmp_path / "toy", TWO)
    (folder / "flaky.sh").write_text("date +%s.%N >> times\n[ $(wc -l < times) = 2 ] || exit 69\ncp times flaky.txt\n")

    result = run(folder)

    assert result.returncode == 0, result.stdout
    first, second = map(float, (folder / "times").read_text().split())
    assert float((folder / "other.txt").read_text()) < second
    assert second - first >= 3
    assert "next attempt in 3 s" in result.stdout


SECRETS = "stages:\n  publish: {cmd: env > all.txt && echo token is $MY_TOKEN, outs: [all.txt]}\n"


def test_a_stage_gets_every_variable_but_the_servers_secrets_and_what_a_secret_is_named_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "a-secret-of-mine")
    folder = toy(tmp_path / "toy", SECRETS)
    variables = environment(tmp_path)
    secrets = ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_DATABASE_CONNECTION_URL")
    variables |= dict.fromkeys(secrets, "sqlite+aiosqlite:///a-secret-of-the-server")

    result = subprocess.run(COMMAND, cwd=folder, env=variables, capture_output=True, text=True, check=False)

    seen = (folder / "all.txt").read_text()
    assert "MY_TOKEN=a-secret-of-mine" in seen
    assert not [name for name in secrets if name in seen]
    assert "token is [MY_TOKEN]" in result.stdout
    assert "a-secret-of-mine" not in result.stdout + result.stderr


def test_a_run_starts_with_a_proxy_certificates_and_a_folder_that_its_libraries_refuse_and_its_stages_get_them(
    tmp_path: Path,
) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: env > all.txt, outs: [all.txt]}\n")
    long = tmp_path / ("long" * 20)
    long.mkdir()
    given = {"ALL_PROXY": "socks://127.0.0.1:9", "SSL_CERT_FILE": "missing.pem", "TMPDIR": str(long)}

    result = subprocess.run(
        COMMAND, cwd=folder, env=environment(tmp_path) | given, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert {f"{name}={value}" for name, value in given.items()} <= {*(folder / "all.txt").read_text().splitlines()}


SHOWN = """\
stages:
  measure:
    cmd: sh measure.sh
    deps: [measure.sh]
    metrics: [loss.json: {cache: false}]
    meta:
      flow:
        show:
          metrics: {loss: "loss.json:held_out.loss", speed: "loss.json:speed"}
          next: "Try it: cat loss.json {loss.json:prompt}"
"""


def test_a_run_shows_the_metrics_that_dvc_yaml_names_and_a_failed_one_shows_no_earlier_ones(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", SHOWN)
    loss = {"held_out": {"loss": 1.25}, "speed": 0, "prompt": "Es war's"}
    (folder / "measure.sh").write_text(f"cat > loss.json <<'END'\n{json.dumps(loss)}\nEND\n")
    good = run(folder).stdout
    (folder / "measure.sh").write_text("exit 2\n")
    bad = run(folder).stdout

    assert re.search(r"^loss +1\.25 *$", good, re.MULTILINE)
    assert re.search(r"^speed +0 *$", good, re.MULTILINE)
    assert 'Try it: cat loss.json "Es war\'s"\n' in good
    assert "1.25" not in bad
    assert "Try it" not in bad


def test_a_run_whose_output_nobody_reads_continues(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", "stages:\n  one: {cmd: seq 2000 && echo 1 > one.txt, outs: [one.txt]}\n")
    command = f"{shlex.quote(sys.executable)} -m flows.cli run | head -n 1"

    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder, capture_output=True, check=False)

    assert (folder / "one.txt").exists()
    assert result.returncode == 0
    assert b"Traceback" not in result.stderr


PUBLISHING = """\
stages:
  train: {cmd: cp value.txt model.txt, deps: [value.txt], outs: [model.txt]}
  publish:
    cmd: cp model.txt receipt.txt
    deps: [model.txt]
    outs: [receipt.txt: {cache: false, persist: true}]
"""


def test_a_pulled_run_restores_what_dvc_stores_and_runs_a_stage_whose_output_it_does_not(tmp_path: Path) -> None:
    folder = toy(tmp_path / "toy", PUBLISHING)
    (folder / "value.txt").write_text("1")
    assert run(folder).returncode == 0
    dvc(folder, "remote", "add", "-q", "-d", "store", str(tmp_path / "store"))
    dvc(folder, "push", "-q", "--run-cache")
    shutil.rmtree(folder / ".dvc/cache")
    for name in ("model.txt", "receipt.txt"):
        (folder / name).unlink()

    result = run(folder, "--pull")

    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"train +restored", result.stdout)
    assert re.search(r"publish +ran", result.stdout)
    assert (folder / "receipt.txt").read_text() == "1"
