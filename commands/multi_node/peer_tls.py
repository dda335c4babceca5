"""How the connections between the nodes of one job are encrypted: as the settings say.

What encrypts is imported where it is needed: a job on one machine starts without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...transport.peer_encryption import PeerEncryption

NOT_ENCRYPTED = "not encrypted: peer_tls is off"


class NoTls(Exception):
    """Connections cannot be encrypted as the settings ask for; one line with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """on: with a key that follows from the secret, or with certificates where all three files are named."""

    on: bool = True
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where only some of the files are named."""
        files = (self.certificate, self.key, self.authority)
        if any(files) and not all(files):
            raise ValueError("peer_cert, peer_key and peer_ca belong together: set all three, or none")

    def encryption(self, secret: bytes) -> PeerEncryption | None:
        """What both ends need, None where nothing is to be encrypted. Raises NoTls."""
        if not self.on:
            return None
        from ...transport.peer_encryption import NoEncryption, encryption_by_certificates, encryption_by_secret

        try:
            if self.certificate is None or self.key is None or self.authority is None:
                return encryption_by_secret(secret)
            if self.key.stat().st_mode & 0o007:
                raise NoTls(f"peer_key {self.key}: everybody may read it; chmod 600 {self.key}")
            return encryption_by_certificates(self.certificate, self.key, self.authority)
        except NoEncryption as error:
            raise NoTls(str(error)) from error
        except OSError as error:
            raise NoTls(f"peer_key {self.key}: {error.strerror or error}") from error
