"""Whether a revision is as it was published: does each file have the hash of the index, and who signed the index?

`parrotflow published verify` and `parrotflow reproduce` ask it, and run nothing of it before. An index says what
its author wants: a signature says who that is, and a reproduction whether the model is what its record describes.

The signature, `provenance.json.sig`, is OpenSSH's (PROTOCOL.sshsig, namespace `parrotflow`); `ssh-keygen -Y` makes and
checks it. The index has the sha256 of every other file, so one signature covers the revision. Nothing needs a network.
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
from typing import Any, Literal

from pydantic import TypeAdapter
from ruamel.yaml.error import YAMLError

from stages.formats.revision.provenance import (
    NOT_INDEXED,
    PROVENANCE,
    RECORD_FOLDER,
    RECORDED_PARAMS,
    SIGNATURE_FILE,
    is_outside,
    project_path,
    revision_name,
)
from stages.formats.revision.statement import Provenance
from stages.runtime.atomic import atomic_write, file_sha256
from stages.runtime.errors import UserError
from stages.runtime.section import read_yaml

SIGNING_KEY = "PARROTFLOW_SIGNING_KEY"
"""Names the file with the private key, or with the public one of a key that ssh-agent has; unset: nothing is signed."""

TRUSTED_KEY = "PARROTFLOW_TRUSTED_KEY"
"""Names the file that revisions are verified with: public keys, a line each."""

NAMESPACE = "parrotflow"
"""A signature that was made for another purpose with the same key is not valid here."""

PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-\S+ \S+")
"""The beginning of a line with a public key."""

ARMOR = re.compile(rb"[!-~ \n]*")
"""The characters of a signature. ssh-keygen ignores other white space, in which a changed byte would be unnoticed."""

NOT_VALID = "the signature is not valid: "

SIGNER = "signer"
"""The name of every key that is trusted."""


def verify_files(folder: Path, besides: Collection[str] = ()) -> list[str]:
    """All faults of the revision in `folder`, in words; empty if it is intact.

    `besides`: names of files and folders that may be next to its own.
    """
    if links := list(links_in(folder)):
        return links
    if not (folder / PROVENANCE).exists():
        return [f"{PROVENANCE}: is missing"]
    try:
        provenance = Provenance.read(folder / PROVENANCE)
    except UserError as error:
        return [f"{PROVENANCE}: {error}, or use the version of parrotflow that published it"]
    if unknown := [path for path in sorted(provenance.files) if not may_hold(path)]:  # and nothing there is read
        return [f"{path}: is not a file that a revision can hold" for path in unknown]
    found = [*_wrong_files(folder, provenance), *_unlisted(folder, provenance, besides)]
    if (name := revision_name(provenance.files)) != provenance.revision:
        found.append(f"{PROVENANCE}: names itself {provenance.revision}, but its files are {name}")
    if not found and RECORDED_PARAMS in provenance.files and provenance.parameters != _recorded_params(folder):
        found.append(f"{PROVENANCE}: its externalParameters are not the values of {RECORDED_PARAMS}")
    return found


def _recorded_params(folder: Path) -> Any:
    try:
        return TypeAdapter(Any).dump_python(
            read_yaml((folder / RECORDED_PARAMS).read_bytes(), trusted=False), mode="json"
        )
    except (YAMLError, ValueError, RecursionError):
        return None


def may_hold(path: str) -> bool:
    """True if a revision can hold a file: the model's own, the card's, or one of the record.

    Code and pickles it cannot hold, since loading the model would run them.
    """
    return not is_outside(path) and (path.startswith(f"{RECORD_FOLDER}/") or project_path(path) is not None)


def links_in(folder: Path) -> Iterator[str]:
    """Everything that is neither a file nor a folder: a link may lead anywhere, also in a circle.

    In the cache of the Hub's client a snapshot is links to its blobs.
    """
    blobs = folder.resolve().parent.parent / "blobs"
    for directory, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            path = Path(directory, name)
            is_plain = not path.is_symlink() or path.resolve().parent == blobs
            if not is_plain or not (path.is_file() or path.is_dir()):
                yield f"{path.relative_to(folder).as_posix()}: is a link or a special file, which no revision holds"


def _wrong_files(folder: Path, provenance: Provenance) -> Iterator[str]:
    for path, expected in sorted(provenance.files.items()):
        if not (folder / path).is_file():
            yield f"{path}: is missing"
        elif (found := file_sha256(folder / path)) != expected:
            yield f"{path}: differs from what was published: expected {expected[:16]}, found {found[:16]}"


def _unlisted(folder: Path, provenance: Provenance, besides: Collection[str]) -> Iterator[str]:
    known = provenance.files.keys() | NOT_INDEXED
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder).as_posix()
        if path not in known and path.split("/")[0] not in besides and (not file.is_dir() or not any(file.iterdir())):
            yield f"{path}: is not part of this revision"


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """The result of checking a revision's signature."""

    state: Literal["unsigned", "unchecked", "valid", "invalid"]
    """`unchecked`: there is a signature, and no public key to check it with."""
    said: str
    """In words, with the fingerprint of the key or the reason."""

    def is_acceptable(self, key: Path | None) -> bool:
        """True if the signature satisfies the caller: valid when a key is given, not invalid when none is."""
        return self.state == "valid" or (trusted_key(key) is None and self.state != "invalid")

    def __str__(self) -> str:
        return self.said


def sign(index: Path, key: Path) -> Path:
    """Write the signature of an index next to it; its path. Raises UserError if the key cannot sign."""
    if not key.is_file():
        raise UserError(f"{SIGNING_KEY}: {key} is not a file; name a private key, e.g. ~/.ssh/id_ed25519")
    with TemporaryDirectory() as temporary:
        copy = Path(temporary, PROVENANCE)
        copy.write_bytes(index.read_bytes())
        done = ssh_keygen("sign", "-f", str(key), "-n", NAMESPACE, str(copy))
        made = copy.with_name(SIGNATURE_FILE)
        if done.returncode or not made.is_file():
            said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
            raise UserError(
                f"{SIGNING_KEY}: {key} cannot sign ({said[-1]}); make a key with `ssh-keygen -t ed25519`; add "
                "an encrypted one to ssh-agent (`ssh-add`), and name its public file"
            )
        signature = index.with_name(SIGNATURE_FILE)
        if not signature.is_file() or signature.read_bytes() != made.read_bytes():
            atomic_write(signature, made.read_bytes())
    return signature


def verify_signature(folder: Path, key: Path | None = None) -> SignatureCheck:
    """Verify the signature of the revision in `folder`.

    `key` is a file of public keys; without it the one that PARROTFLOW_TRUSTED_KEY names is used. `valid`: the holder of
    a key there signed this index. Without a key a damaged signature is `invalid`, any other `unchecked`. Raises
    UserError if the file cannot be read, or a key is named and ssh-keygen is missing.
    """
    key = trusted_key(key)
    signature, content = folder / SIGNATURE_FILE, folder / PROVENANCE
    if key is not None and not key.is_file():
        raise UserError(f"{key}: no such file; name a public key, e.g. key.pub")
    if not signature.is_file() or not content.is_file():
        return SignatureCheck("unsigned", "not signed")
    if key is None and shutil.which("ssh-keygen") is None:
        return SignatureCheck("unchecked", "signature not checked: ssh-keygen is not installed")
    common = ("-n", NAMESPACE, "-s", str(signature))
    intact = ssh_keygen("check-novalidate", *common, reads=content)
    if intact.returncode or not ARMOR.fullmatch(signature.read_bytes()):
        return SignatureCheck(
            "invalid", f"{NOT_VALID}{PROVENANCE} is not what was signed, or {SIGNATURE_FILE} is damaged"
        )
    fingerprint = intact.stdout.split()[-1]  # Good "parrotflow" signature with ED25519 key SHA256:...
    if key is None:
        said = f"signature not checked: made with the key {fingerprint}; name the publisher's public key with --key"
        return SignatureCheck("unchecked", said)
    with allowed_signers(key) as allowed:
        done = ssh_keygen("verify", "-f", str(allowed), "-I", SIGNER, *common, reads=content)
    if done.returncode == 0:
        return SignatureCheck("valid", f"signed by {fingerprint}")
    return SignatureCheck("invalid", f"{NOT_VALID}made with the key {fingerprint}, which is not in {key}")


def trusted_key(key: Path | None) -> Path | None:
    """The file with the key to verify with: `--key`, else PARROTFLOW_TRUSTED_KEY."""
    named = os.environ.get(TRUSTED_KEY)
    return key or (Path(named).expanduser() if named else None)


@contextmanager
def allowed_signers(key: Path) -> Iterator[Path]:
    """An allowed-signers file (ssh-keygen(1)) with the public keys of a file. Raises UserError if it has none."""
    try:
        lines = key.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{key}: cannot be read ({error}); name a public key, e.g. key.pub") from None
    keys = [f'{SIGNER} namespaces="{NAMESPACE}" {line}\n' for line in lines if PUBLIC_KEY.match(line)]
    if not keys:
        raise UserError(f"{key}: holds no public key; name the file that `ssh-keygen` wrote next to the private one")
    with TemporaryDirectory() as temporary:
        allowed = Path(temporary) / "allowed_signers"
        allowed.write_text("".join(keys), encoding="utf-8")
        yield allowed


def ssh_keygen(action: str, *options: str, reads: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run `ssh-keygen -Y`, which asks for no passphrase. Raises UserError if it is not installed."""
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", action, *options],
            input=reads.read_text(encoding="utf-8", errors="surrogateescape") if reads else "",
            env=os.environ | {"SSH_ASKPASS": "false", "SSH_ASKPASS_REQUIRE": "force", "LC_ALL": "C"},
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except FileNotFoundError:
        raise UserError("signatures need ssh-keygen (OpenSSH 8.2 or newer): `apt-get install openssh-client`") from None
