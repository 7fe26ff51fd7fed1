"""Keys are made by ssh-keygen, as the documentation says; nothing needs a network."""

import subprocess
from pathlib import Path

import pytest

from stages.formats.revision.provenance import PROVENANCE, SIGNATURE_FILE
from stages.formats.revision.verify import TRUSTED_KEY, sign, verify_files, verify_signature
from stages.runtime.errors import UserError
from tests.formats.revision.records import write_index

pytestmark = pytest.mark.needs_ssh_keygen


def make_key(folder: Path, name: str = "key", kind: str = "ed25519", passphrase: str = "") -> Path:
    """The file of a private key; the public one is next to it."""
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "", "-f", str(folder / name)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / name


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(TRUSTED_KEY, raising=False)
    return make_key(tmp_path)


@pytest.fixture
def signed(revision: Path, key: Path) -> Path:
    sign(revision / PROVENANCE, key)
    return revision


def test_a_signature_is_verified_with_the_public_key(signed: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify_signature(signed, public(key)).state == "valid"
    assert verify_files(signed) == []
    unchecked = verify_signature(signed)
    assert unchecked.state == "unchecked"
    assert unchecked.is_acceptable(None)

    monkeypatch.setenv(TRUSTED_KEY, str(public(key)))
    assert str(verify_signature(signed)).startswith("signed by SHA256:")


def test_any_key_of_a_file_with_several_verifies(signed: Path, key: Path, tmp_path: Path) -> None:
    other = public(make_key(tmp_path, "other", "ecdsa")).read_text()
    (tmp_path / "team.pub").write_text(f"{other}\n# the second machine\n{public(key).read_text()}")
    assert verify_signature(signed, tmp_path / "team.pub").state == "valid"
    (tmp_path / "team.pub").write_text(other * 2)
    assert verify_signature(signed, tmp_path / "team.pub").state == "invalid"


def test_openssh_itself_verifies_it(signed: Path, key: Path, tmp_path: Path) -> None:
    (tmp_path / "allowed").write_text(f"me@example.com {public(key).read_text()}")

    names = ["-f", str(tmp_path / "allowed"), "-I", "me@example.com", "-n", "parrotflow"]
    command = ["ssh-keygen", "-Y", "verify", *names, "-s", str(signed / SIGNATURE_FILE)]
    subprocess.run(command, input=(signed / PROVENANCE).read_bytes(), check=True)


def test_nobody_is_asked_for_a_passphrase(revision: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot sign \(.*passphrase.*; add an encrypted one to ssh-agent"):
        sign(revision / PROVENANCE, make_key(tmp_path, "locked", passphrase="it's secret"))


def test_a_revision_without_a_signature_is_unsigned_and_refused_where_a_key_is_named(revision: Path, key: Path) -> None:
    assert verify_signature(revision, public(key)).state == "unsigned"
    assert not verify_signature(revision, public(key)).is_acceptable(public(key))
    assert verify_signature(revision).is_acceptable(None)


def test_whoever_writes_a_revision_anew_cannot_sign_it(signed: Path, key: Path, tmp_path: Path) -> None:
    (signed / "model.safetensors").write_bytes(b"other weights")
    write_index(signed)
    assert verify_signature(signed, public(key)).said.startswith(
        f"the signature is not valid: {PROVENANCE} is not what was signed"
    )
    assert verify_signature(signed).state == "invalid"

    sign(signed / PROVENANCE, make_key(tmp_path, "forger"))
    assert verify_signature(signed, public(key)).said.endswith(f"which is not in {public(key)}")


def test_a_signature_that_was_made_for_something_else_is_not_valid(revision: Path, key: Path) -> None:
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "git", str(revision / PROVENANCE)]
    subprocess.run(command, check=True, capture_output=True)

    assert verify_signature(revision, public(key)).state == "invalid"


@pytest.mark.parametrize("text", ["", "{}", "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"])
def test_a_damaged_signature_is_not_valid_with_a_key_or_without(signed: Path, key: Path, text: str) -> None:
    (signed / SIGNATURE_FILE).write_text(text)

    assert verify_signature(signed, public(key)).state == "invalid"
    assert not verify_signature(signed).is_acceptable(None)


def test_a_key_that_cannot_be_used_is_named(signed: Path, key: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"PARROTFLOW_SIGNING_KEY: .*none is not a file"):
        sign(signed / PROVENANCE, tmp_path / "none")
    with pytest.raises(UserError, match=r"none.pub: no such file; name a public key"):
        verify_signature(signed, tmp_path / "none.pub")
    with pytest.raises(UserError, match=r"holds no public key; name the file"):
        verify_signature(signed, key)
    (tmp_path / "text").write_text("no key")
    with pytest.raises(UserError, match=r"cannot sign"):
        sign(signed / PROVENANCE, tmp_path / "text")


def test_without_ssh_keygen_a_signature_is_not_checked_and_a_key_is_an_error(
    signed: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert str(verify_signature(signed)) == "signature not checked: ssh-keygen is not installed"
    with pytest.raises(UserError, match="apt-get install openssh-client"):
        verify_signature(signed, public(key))
    with pytest.raises(UserError, match="apt-get install openssh-client"):
        sign(signed / PROVENANCE, key)


def test_a_changed_byte_of_any_file_is_named(signed: Path, key: Path) -> None:
    for path in sorted(path for path in signed.rglob("*") if path.is_file()):
        content = path.read_bytes()
        some = {0, len(content) // 2, len(content) - 1} if content else set()
        for at in range(len(content)) if path.name == SIGNATURE_FILE else some:
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            unsigned = verify_files(signed) or verify_signature(signed).state == "invalid"
            assert unsigned, f"{path}, byte {at}"
            assert path.name in (SIGNATURE_FILE, PROVENANCE) or path.name in str(verify_files(signed))
        path.write_bytes(content)
