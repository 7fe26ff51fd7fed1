"""Keys are made by openssl, as the documentation says; nothing needs a network."""

import json
import subprocess
from pathlib import Path

import pytest

from stages.formats.revision.layout import SIGNATURE, STATEMENT
from stages.formats.revision.signature import PASSPHRASE, TRUSTED_KEY, sign, verify_signature
from stages.formats.revision.verify import verify_files
from stages.runtime.entry import UserError
from tests.formats.revision.records import write_attested, write_index


def make_keys(folder: Path, name: str = "key", *options: str) -> tuple[Path, Path]:
    """The files of a private and a public key."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    run("genpkey", *(options or ("-algorithm", "ed25519")), "-out", str(private))
    run("pkey", "-in", str(private), "-passin", "pass:secret", "-pubout", "-out", str(public))
    return private, public


def run(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return make_keys(tmp_path)


@pytest.fixture
def signed(revision: Path, keys: tuple[Path, Path]) -> Path:
    sign(revision / STATEMENT, revision / SIGNATURE, keys[0])
    return revision


def test_a_signature_is_verified_with_the_public_key(
    signed: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify_signature(signed, keys[1]).state == "valid"
    assert verify_files(signed) == []
    assert verify_signature(signed).state == "unchecked"

    monkeypatch.setenv(TRUSTED_KEY, str(keys[1]))
    verdict = verify_signature(signed)
    assert verdict.state == "valid"
    assert str(verdict) == f"signed by key {(verdict.key or '')[:16]}"


@pytest.mark.parametrize(
    "options", [("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"), ("-algorithm", "RSA")]
)
def test_keys_of_other_kinds_work_too(revision: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    private, public = make_keys(tmp_path, "other", *options)

    sign(revision / STATEMENT, revision / SIGNATURE, private)

    assert verify_signature(revision, public).state == "valid"


def test_a_key_may_have_a_passphrase(revision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = make_keys(tmp_path, "locked", "-algorithm", "ed25519", "-aes256", "-pass", "pass:secret")
    with pytest.raises(UserError, match=f"no private key in PEM that can sign.*set {PASSPHRASE}"):
        sign(revision / STATEMENT, revision / SIGNATURE, private)

    monkeypatch.setenv(PASSPHRASE, "secret")
    sign(revision / STATEMENT, revision / SIGNATURE, private)

    assert verify_signature(revision, public).state == "valid"


def test_a_revision_without_a_signature_is_unsigned(revision: Path, keys: tuple[Path, Path]) -> None:
    assert verify_signature(revision, keys[1]).state == "unsigned"


def test_whoever_writes_a_revision_anew_cannot_sign_it(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    (signed / "model.safetensors").write_bytes(b"other weights")
    write_index(signed)
    assert verify_signature(signed, keys[1]).reason.startswith("the statement has another hash of model.safetensors, ")

    write_attested(signed)
    assert verify_signature(signed, keys[1]).reason == f"{STATEMENT} is not what was signed"

    sign(signed / STATEMENT, signed / SIGNATURE, make_keys(tmp_path, "forger")[0])
    assert verify_signature(signed, keys[1]).reason == "made with another key"


def test_a_signature_of_other_bytes_is_not_valid(signed: Path, keys: tuple[Path, Path]) -> None:
    envelope = json.loads((signed / SIGNATURE).read_text())
    envelope["payload"] = "e30="
    (signed / SIGNATURE).write_text(json.dumps(envelope))

    assert verify_signature(signed, keys[1]).reason == "the statement was changed after it was signed"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"payload": 1, "payloadType": "", "signatures": [{}]}'])
def test_a_damaged_signature_is_not_valid(signed: Path, keys: tuple[Path, Path], text: str) -> None:
    (signed / SIGNATURE).write_text(text)

    assert verify_signature(signed, keys[1]).state == "invalid"


def test_a_key_that_cannot_be_read_is_named(signed: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"PARROTFLOW_SIGNING_KEY: cannot read the private key \(No such file"):
        sign(signed / STATEMENT, signed / SIGNATURE, tmp_path / "none.pem")
    with pytest.raises(UserError, match=r"none.pub: no public key in PEM"):
        verify_signature(signed, tmp_path / "none.pub")
