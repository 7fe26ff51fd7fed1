"""`train.start_from`: which models may be continued, and what identifies them."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import chdir
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from stages.formats.tokens import Manifest
from stages.runtime.entry import EXIT_UNAVAILABLE, EXIT_USER_ERROR, UserError
from stages.train.model.build import save_model, source_sha256, use_ids_of
from stages.train.model.generation import kept_settings, note_dropped_settings
from tests.hub_client import with_short_waits
from tests.train.models import GROUPED
from tests.train.small_run import copy_of, fork, run, run_workers, start, write_params, write_project

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a trained model, which lies outside of `model/`."""
    folder = write_project(tmp_path_factory.mktemp("trained"), max_steps=2)
    run_workers(folder, 1)
    (folder / "model").rename(folder / "base")
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path) -> Path:
    """A project that continues it."""
    folder = copy_of(trained, tmp_path / "project")
    write_params(folder, max_steps=2, start_from="base")
    return folder


class NoAccess(BaseHTTPRequestHandler):
    """A Hub that knows the model and refuses this user."""

    def do_GET(self) -> None:
        """Answers as the Hub does to a wrong token."""
        self.send_response(403)
        self.send_header("X-Error-Code", "Forbidden")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *values: object) -> None:
        """Say nothing."""


class Silent(NoAccess):
    """A Hub that ends every connection without an answer."""

    def do_GET(self) -> None:
        """Answers nothing."""
        self.close_connection = True

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def refusing_hub() -> Iterator[str]:
    """Its address."""
    yield from serve(NoAccess)


@pytest.fixture
def silent_hub() -> Iterator[str]:
    """Its address."""
    yield from serve(Silent)


def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server, for as long as it is wanted."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def run_with_hub(address: str, project: Path, expected_code: int) -> str:
    """What the command says with the Hub at that address, and nothing of it on this machine."""
    variables = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": address, "HF_HOME": str(project)}
    return run(project, expected_code, partial(start, command=with_short_waits("stages.train")), **variables)


def test_other_weights_in_the_same_folder_are_another_run(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_workers(project, 1)
    weights = load_file(project / "base/model.safetensors")
    larger = {name: value * 1.5 for name, value in weights.items()}
    save_file(larger, project / "base/model.safetensors", metadata={"format": "pt"})
    capfd.readouterr()
    run_workers(project, 1)
    said = capfd.readouterr().out
    assert "starting afresh, not from another run's checkpoints: start_from: " in said
    assert "continuing" not in said


def test_a_hub_that_does_not_answer_ends_the_run_with_the_code_for_a_retry(project: Path) -> None:
    write_params(project, start_from=f"owner/name@{COMMIT}")
    said = run_with_hub("http://127.0.0.1:9", project, EXIT_UNAVAILABLE)
    assert f"error: params.yaml: train.start_from = 'owner/name@{COMMIT}': the Hub does not answer: " in said
    assert "Traceback" not in said


def test_a_hub_that_cuts_connections_does_not_answer(project: Path, silent_hub: str) -> None:
    write_params(project, start_from=f"owner/name@{COMMIT}")
    said = run_with_hub(silent_hub, project, EXIT_UNAVAILABLE)
    assert "the Hub does not answer: " in said
    assert "Traceback" not in said


def test_refused_access_is_no_outage(project: Path, refusing_hub: str) -> None:
    write_params(project, start_from=f"owner/name@{COMMIT}")
    said = run_with_hub(refusing_hub, project, EXIT_USER_ERROR)
    assert f"error: params.yaml: train.start_from = 'owner/name@{COMMIT}': access is refused: " in said
    assert "Traceback" not in said


def test_a_folder_with_pickled_weights_alone_is_refused_with_one_message(project: Path) -> None:
    weights = load_file(project / "base/model.safetensors")
    torch.save(weights, project / "base/pytorch_model.bin")
    (project / "base/model.safetensors").unlink()
    said = run(project, EXIT_USER_ERROR, fork).splitlines()
    assert said == [
        "error: params.yaml: train.start_from = 'base': holds no *.safetensors; pickled weights are not loaded, "
        "as they can run code"
    ]


def test_code_in_a_models_folder_is_not_run(project: Path) -> None:
    (project / "base/own.py").write_text(f"open({str(project / 'ran')!r}, 'w')\n", encoding="utf-8")
    config = json.loads((project / "base/config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (project / "base/config.json").write_text(json.dumps(config))
    said = run(project, EXIT_USER_ERROR, begin=fork)
    assert "error: params.yaml: train.start_from = 'base': cannot be loaded: " in said
    assert not (project / "ran").exists()
    shutil.rmtree(project / "base")


def test_a_model_with_another_tokenizer_ends_texts_as_the_tokens_do_and_can_be_loaded(tmp_path: Path) -> None:
    ids = {"pad_token_id": 500, "bos_token_id": 502, "eos_token_id": [501, 7]}
    config = AutoConfig.for_model("llama", **GROUPED, vocab_size=512, **ids)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    project = write_project(tmp_path / "project", max_steps=2, start_from=str(tmp_path / "base"))

    run(project, begin=fork)

    model = AutoModelForCausalLM.from_pretrained(project / "model")
    for written in (model.config, model.generation_config):
        assert (written.bos_token_id, written.eos_token_id, written.pad_token_id) == (0, 0, 0)


def test_generation_settings_that_transformers_refuses_to_save_are_dropped_with_a_line() -> None:
    given = GenerationConfig(temperature=0.7, top_p=0.9, max_new_tokens=30, suppress_tokens=[7], stop_strings=["END"])
    kept = kept_settings(given)
    kept.validate(strict=True)
    assert (kept.max_new_tokens, kept.temperature, kept.suppress_tokens, kept.stop_strings) == (30, None, None, None)
    sampled = kept_settings(GenerationConfig(do_sample=True, temperature=0.7))
    assert (sampled.do_sample, sampled.temperature) == (True, 0.7)


def test_the_dropped_settings_are_named_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "suppress_tokens": [7]}))
    (line,) = note_dropped_settings(tmp_path)
    assert line.startswith("note: train.start_from: generation_config.json: suppress_tokens, temperature: dropped")


def test_a_run_is_identified_by_weights_and_config_and_not_by_its_generation_settings(trained: Path) -> None:
    with chdir(trained):
        before = source_sha256("base")
        file = Path("base/generation_config.json")
        content = file.read_text(encoding="utf-8")
        file.write_text(json.dumps({"max_new_tokens": 5}), encoding="utf-8")
        assert source_sha256("base") == before
        file.write_text(content, encoding="utf-8")


def test_a_model_that_transformers_refuses_to_save_ends_the_run_with_one_message(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=1, vocab_size=9))
    model.generation_config.temperature = 0.7
    with pytest.raises(UserError, match=r"train: transformers cannot save the trained model: .*temperature"):
        save_model(model, tmp_path)


def test_the_weights_can_be_read_by_whom_the_umask_allows(trained: Path) -> None:
    modes = {(trained / "base" / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1


def test_a_model_type_without_a_padding_token_is_taken() -> None:
    config = AutoConfig.for_model("codegen")
    use_ids_of(Manifest("uint16", 300, 5, "", "", ()), config)
    assert config.eos_token_id == 5
