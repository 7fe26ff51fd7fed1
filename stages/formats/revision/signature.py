"""Signs a revision's statement, and verifies the signature: `model.sig`.

A DSSE envelope (https://github.com/secure-systems-lab/dsse/blob/master/envelope.md) around the bytes of statement.json,
made by securesystemslib with a key in a PEM file: Ed25519, ECDSA or RSA. The statement lists every file of the revision
with its hash, so the signature is of all of them. Nothing here needs a network.
"""

import json
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from stages.formats.revision.layout import PROVENANCE, SIGNATURE, STATEMENT
from stages.formats.revision.provenance import read_provenance
from stages.formats.revision.statement import differing_subjects, read_statement
from stages.runtime.entry import UserError
from stages.runtime.hashes import file_sha256

SIGNING_KEY = "PARROTFLOW_SIGNING_KEY"
"""Names the file with the private key (PEM, PKCS #8); unset: nothing is signed."""

PASSPHRASE = "PARROTFLOW_SIGNING_PASSPHRASE"
"""Of the private key, where it is encrypted."""

TRUSTED_KEY = "PARROTFLOW_TRUSTED_KEY"
"""Names the file with the public key (PEM) that revisions are verified with."""

PAYLOAD_TYPE = "application/vnd.in-toto+json"
"""Of an in-toto statement in an envelope (in-toto v1, envelope.md)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a revision's signature."""

    state: Literal["unsigned", "unchecked", "valid", "invalid"]
    """`unchecked`: there is a signature, and no public key to check it with."""
    reason: str = ""
    """Why it is invalid."""
    key: str | None = None
    """The id of the key that the signature names: the sha256 of the public key, as securesystemslib writes it."""

    def __str__(self) -> str:
        """In words."""
        match self.state:
            case "unsigned":
                return "not signed"
            case "unchecked":
                return f"signed by key {(self.key or '')[:16]}, which was not checked: name its public key"
            case "valid":
                return f"signed by key {(self.key or '')[:16]}"
            case "invalid":
                return f"the signature is not valid: {self.reason}"


def require_library() -> None:
    """Raise UserError where the library for signatures is not installed: it is optional."""
    if find_spec("securesystemslib") is None:
        raise UserError("signatures need the library securesystemslib: `pip install parrotflow[signing]`")


def sign(statement: Path, signature: Path, key_file: Path) -> None:
    """Write a signature of a statement. Raises UserError if the key cannot be read."""
    require_library()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    passphrase = os.environ.get(PASSPHRASE)
    try:
        key: Any = load_pem_private_key(key_file.read_bytes(), passphrase.encode() if passphrase else None)
        signer = CryptoSigner(key)
    except OSError as error:
        raise UserError(f"{SIGNING_KEY}: cannot read the private key ({error.strerror}); correct the path") from None
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{SIGNING_KEY}: no private key in PEM that can sign ({error}); make one with `openssl genpkey -algorithm "
            f"ed25519`, or set {PASSPHRASE}"
        ) from None
    envelope = Envelope(statement.read_bytes(), PAYLOAD_TYPE, {})
    envelope.sign(signer)
    signature.write_text(json.dumps(envelope.to_dict(), sort_keys=True) + "\n", encoding="utf-8")


def verify_signature(folder: Path, public_key: Path | None = None) -> Verdict:
    """Verify the signature of the revision in `folder`.

    Without `public_key` the one that PARROTFLOW_TRUSTED_KEY names is used. `valid` means: the holder of the key signed
    this statement, and it gives every file of the index, and the index itself, the hash that the index gives. That the
    files have these hashes is for `verify_files` to say. Raises UserError if the public key cannot be read.
    """
    if not (folder / SIGNATURE).is_file():
        return Verdict("unsigned")
    require_library()
    named = os.environ.get(TRUSTED_KEY)
    if public_key is None and named:
        public_key = Path(named)
    try:
        envelope, key = _read_envelope(folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Verdict("invalid", f"{SIGNATURE} cannot be read ({type(error).__name__})")
    if public_key is None:
        return Verdict("unchecked", key=key)
    return _verified(folder, envelope, key, public_key)


def _read_envelope(folder: Path) -> tuple[Any, str]:
    from securesystemslib.dsse import Envelope

    envelope = Envelope.from_dict(json.loads((folder / SIGNATURE).read_bytes()))
    return envelope, next(iter(envelope.signatures), "")


def _verified(folder: Path, envelope: Any, key: str, public_key: Path) -> Verdict:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    try:
        trusted = SSlibKey.from_crypto(load_pem_public_key(public_key.read_bytes()))
    except (OSError, ValueError) as error:
        raise UserError(f"{public_key}: no public key in PEM ({error}); make one with `openssl pkey -pubout`") from None
    try:
        envelope.verify([trusted], threshold=1)
    except VerificationError:
        reason = "made with another key" if key != trusted.keyid else "the statement was changed after it was signed"
        return Verdict("invalid", reason, key)
    if envelope.payload_type != PAYLOAD_TYPE or envelope.payload != _bytes(folder / STATEMENT):
        return Verdict("invalid", f"{STATEMENT} is not what was signed", key)
    reason = _unsaid(folder)
    return Verdict("invalid", reason, key) if reason else Verdict("valid", key=key)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _unsaid(folder: Path) -> str:
    """What the index says and the statement does not; empty where they agree."""
    statement, provenance = read_statement(folder / STATEMENT), read_provenance(folder / PROVENANCE)
    if statement is None or provenance is None:
        return f"{STATEMENT} or {PROVENANCE} cannot be read"
    differing = differing_subjects(statement, provenance, file_sha256(folder / PROVENANCE))
    return f"the statement has another hash of {', '.join(differing[:3])}" if differing else ""
