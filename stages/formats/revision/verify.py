"""Verifies a revision in a folder: is every file what its index says, does the record agree with itself, who signed it?

`parrotflow published verify` and `parrotflow reproduce` ask the same, and nothing is run before they have the answer.
The signature, `provenance.json.sig`, is OpenSSH's (PROTOCOL.sshsig, namespace `parrotflow`), by `ssh-keygen -Y`. The
index has the sha256 of every other file, so one signature is of the whole revision. Nothing here needs a network.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from stages.formats.model_folder import weights_sha256
from stages.formats.revision.consistency import inconsistencies
from stages.formats.revision.execution import Execution
from stages.formats.revision.lock import Fault, is_outside
from stages.formats.revision.provenance import (
    EXECUTION,
    NOT_INDEXED,
    PROVENANCE,
    SIGNATURE,
    Provenance,
    is_undamaged,
    revision_name,
)
from stages.runtime.atomic import file_sha256
from stages.runtime.entry import UserError

OLDER = (
    "has no checksum: it was written by an older version of parrotflow; delete the revision and run "
    "`dvc repro -f -s publish`"
)


def verify_files(folder: Path, besides: Collection[str] = ()) -> list[Fault]:
    """All faults of the revision in `folder`; none where it is intact, whoever wrote it: that a signature says.

    `besides`: files and folders that may lie next to its own.
    """
    links = list(links_in(folder))
    provenance = None if links else Provenance.find(folder / PROVENANCE)
    if provenance is None:
        return links or [Fault(PROVENANCE, "unreadable" if (folder / PROVENANCE).exists() else "missing")]
    if not provenance.checksum:
        return [Fault(PROVENANCE, "unreadable", OLDER)]
    if not is_undamaged(folder / PROVENANCE, provenance):
        return [Fault(PROVENANCE, "differs", "its checksum is that of other content")]
    if outside := [Fault(path, "missing") for path in sorted(provenance.files) if is_outside(path)]:
        return outside  # and nothing there is read
    found = [*_wrong_files(folder, provenance), *_unlisted(folder, provenance, besides), *_unbound(folder, provenance)]
    named = {fault.path for fault in found}
    return [*found, *(fault for fault in inconsistencies(folder, provenance) if fault.path not in named)]


def links_in(folder: Path) -> Iterator[Fault]:
    """Everything that is neither a file nor a folder: a link may lead anywhere, also in a circle.

    In the cache of the Hub's client a snapshot is links to its blobs.
    """
    blobs = folder.resolve().parent.parent / "blobs"
    for directory, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            path = Path(directory, name)
            is_plain = not path.is_symlink() or path.resolve().parent == blobs
            if not is_plain or not (path.is_file() or path.is_dir()):
                yield Fault(path.relative_to(folder).as_posix(), "link")


def _wrong_files(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    for path, expected in sorted(provenance.files.items()):
        if not (folder / path).is_file():
            yield Fault(path, "missing")
        elif (found := file_sha256(folder / path)) != expected:
            yield Fault(path, "differs", f"expected {expected[:16]}, found {found[:16]}")


def _unlisted(folder: Path, provenance: Provenance, besides: Collection[str]) -> Iterator[Fault]:
    known = provenance.files.keys() | NOT_INDEXED
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        if path not in known and path.split("/")[0] not in besides and (not file.is_dir() or not any(file.iterdir())):
            yield Fault(path, "unlisted")


def _unbound(folder: Path, provenance: Provenance) -> Iterator[Fault]:
    if (name := revision_name(provenance.files)) != provenance.revision:
        yield Fault(PROVENANCE, "differs", f"names itself {provenance.revision}, and its files are {name}")
    try:
        weights = weights_sha256(folder)
    except UserError:
        return  # missing, which is a fault already
    if weights != provenance.weights_sha256:
        yield Fault(PROVENANCE, "unbound", f"expected {provenance.weights_sha256[:16]}, found {weights[:16]}")
    if EXECUTION not in provenance.files or not (folder / EXECUTION).is_file():
        return
    execution = Execution.find(folder / EXECUTION)
    if execution is None:
        yield Fault(EXECUTION, "unreadable")
    elif execution.weights_sha256 != weights:
        yield Fault(EXECUTION, "unbound", f"expected {execution.weights_sha256[:16]}, found {weights[:16]}")


SIGNING_KEY = "PARROTFLOW_SIGNING_KEY"
"""Names the file with the private key, or with the public one of a key that ssh-agent has; unset: nothing is signed."""

PASSPHRASE = "PARROTFLOW_SIGNING_PASSPHRASE"
"""Of the private key, where it is encrypted."""

TRUSTED_KEY = "PARROTFLOW_TRUSTED_KEY"
"""Names the file that revisions are verified with: a public key, or an allowed-signers file (ssh-keygen(1))."""

NAMESPACE = "parrotflow"
"""A signature that was made for another purpose with the same key is not valid here."""

PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-\S+ \S+")
"""How a file with a public key begins; a line of an allowed-signers file begins with names."""

ARMOR = re.compile(rb"[!-~ \n]*")
"""The characters of a signature. ssh-keygen ignores other white space, in which a changed byte would be unnoticed."""

SIGNER = "signer"
"""The name of the one key of such a file."""

ASK = f'#!/bin/sh\nprintf "%s\\n" "${PASSPHRASE}"\n'
"""Answers for the user: ssh-keygen would ask in the terminal, where a service has no one to answer."""


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """What is known of a revision's signature."""

    state: Literal["unsigned", "unchecked", "valid", "invalid"]
    """`unchecked`: there is a signature, and no public key to check it with."""
    reason: str = ""
    """Why it is invalid, or was not checked."""
    signer: str = ""
    """The fingerprint of the key, after its name in the allowed-signers file."""

    def is_acceptable(self, key: Path | None) -> bool:
        """Whether the signature is what a user can expect who names a key, or none."""
        return self.state == "valid" or (trusted_key(key) is None and self.state != "invalid")

    def __str__(self) -> str:
        """In words."""
        match self.state:
            case "unsigned":
                return "not signed"
            case "unchecked":
                return f"signature not checked: {self.reason}"
            case "valid":
                return f"signed by {self.signer}"
            case "invalid":
                return f"the signature is not valid: {self.reason}"


def sign(provenance: Path, key: Path) -> None:
    """Write the signature of an index, in its folder. Raises UserError where the key cannot sign."""
    if not key.is_file():
        raise UserError(f"{SIGNING_KEY}: {key} is no file; it names a private key, e.g. ~/.ssh/id_ed25519")
    signature = provenance.with_name(SIGNATURE)
    signature.unlink(missing_ok=True)  # ssh-keygen asks before it overwrites
    done = ssh_keygen("sign", "-f", str(key), "-n", NAMESPACE, str(provenance))
    if done.returncode or not signature.is_file():
        raise UserError(
            f"{SIGNING_KEY}: {key} cannot sign ({last_line(done)}); make a key with `ssh-keygen -t ed25519`, and give "
            f"the passphrase of an encrypted one in {PASSPHRASE}"
        )


def verify_signature(folder: Path, key: Path | None = None) -> SignatureCheck:
    """Verify the signature of the revision in `folder`.

    `key` is a public key or an allowed-signers file; without it the one that PARROTFLOW_TRUSTED_KEY names is used.
    `valid`: the holder of a key that is named there signed this index. Without a key a damaged signature is `invalid`,
    any other `unchecked`. Raises UserError if the file cannot be read, or a key is named and ssh-keygen is missing.
    """
    key = trusted_key(key)
    signature, content = folder / SIGNATURE, folder / PROVENANCE
    if key is not None and not key.is_file():
        raise UserError(f"{key}: no such file; name a public key (key.pub) or an allowed-signers file")
    if not signature.is_file() or not content.is_file():
        return SignatureCheck("unsigned")
    if key is None and shutil.which("ssh-keygen") is None:
        return SignatureCheck("unchecked", "ssh-keygen is not installed")
    common = ("-n", NAMESPACE, "-s", str(signature))
    intact = ssh_keygen("check-novalidate", *common, reads=content)
    if intact.returncode or not ARMOR.fullmatch(signature.read_bytes()):
        return SignatureCheck("invalid", f"{PROVENANCE} is not what was signed, or {SIGNATURE} is damaged")
    fingerprint = intact.stdout.split()[-1]  # Good "parrotflow" signature with ED25519 key SHA256:...
    if key is None:
        return SignatureCheck(
            "unchecked", f"made with the key {fingerprint}; name the publisher's public key with --key"
        )
    with allowed_signers(key) as allowed:
        found = ssh_keygen("find-principals", "-f", str(allowed), "-s", str(signature))
        for name in found.stdout.splitlines():
            if ssh_keygen("verify", "-f", str(allowed), "-I", name, *common, reads=content).returncode == 0:
                return SignatureCheck("valid", signer=fingerprint if name == SIGNER else f"{name}, {fingerprint}")
    return SignatureCheck("invalid", f"made with the key {fingerprint}, which {key} does not name for {NAMESPACE}")


def trusted_key(key: Path | None) -> Path | None:
    """The file to verify with: that of `--key`, else the one that PARROTFLOW_TRUSTED_KEY names."""
    named = os.environ.get(TRUSTED_KEY)
    return key or (Path(named).expanduser() if named else None)


@contextmanager
def allowed_signers(key: Path) -> Iterator[Path]:
    """The allowed-signers file that a user names, or one with the public keys, a line each, that a user names."""
    try:
        text = key.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{key}: cannot be read ({error}); name a public key or an allowed-signers file") from None
    if "PRIVATE KEY" in text:
        raise UserError(f"{key}: is a private key; name the public one, {key}.pub")
    if not PUBLIC_KEY.match(text):
        yield key
        return
    with TemporaryDirectory() as temporary:
        allowed = Path(temporary) / "allowed_signers"
        keys = [f'{SIGNER} namespaces="{NAMESPACE}" {line}\n' for line in text.splitlines() if PUBLIC_KEY.match(line)]
        allowed.write_text("".join(keys), encoding="utf-8")
        yield allowed


def ssh_keygen(action: str, *options: str, reads: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run `ssh-keygen -Y`. Raises UserError where it is not installed."""
    with TemporaryDirectory() as temporary:
        ask = Path(temporary) / "ask"
        ask.write_text(ASK, encoding="utf-8")
        ask.chmod(0o700)
        try:
            return subprocess.run(
                ["ssh-keygen", "-Y", action, *options],
                input=reads.read_text(encoding="utf-8", errors="surrogateescape") if reads else "",
                env=os.environ | {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "LC_ALL": "C"},
                capture_output=True,
                check=False,
                encoding="utf-8",
                errors="surrogateescape",
            )
        except FileNotFoundError:
            raise UserError(
                "signatures need ssh-keygen (OpenSSH 8.2 or newer): `apt-get install openssh-client`"
            ) from None


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The last thing that a program said."""
    return (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
