"""TLS between the instances of one job: mutual, TLS 1.3 alone, by a key from the job's secret or by certificates. Pure.

Bytes of the network go in, bytes of the protocol come out, and the other way: who owns the sockets is not asked here.
With the secret both sides make the same key pair from it and trust no other, so whoever does not know the secret
neither reads nor joins. With certificates each side shows one of the named authority; the proofs in ``peer_frames``
are then bound to the certificate that the judge shows, so that another holder of one cannot stand in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .peer_frames import OTHER_SECRET, BrokenPeer

#: Says how whoever speaks plainly can come in; other releases show it as the judge's reason.
PLAIN_REFUSED = "this judge speaks TLS only: all nodes need the same release of whichrank, and the same peer_tls"
JUDGE_IS_PLAIN = "no TLS there: another release of whichrank, or peer_tls is off there"
BY_SECRET, BY_CERTIFICATES = "encrypted with the secret (TLS 1.3)", "encrypted with certificates (TLS 1.3)"
_READ_BYTES = 1 << 16
#: A guess at the secret costs as much (32 MB, about 0.1 s), where somebody has seen the public key.
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P, _SCRYPT_BYTES = 1 << 15, 8, 1, 64 << 20
_NAME = "whichrank"
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
#: Of OpenSSL: self-signed, or by nobody who is believed, or by somebody of the same name.
_UNKNOWN = frozenset({7, 18, 19, 20, 21})
_PEM_BEGIN, _PEM_END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


class NoEncryption(Exception):
    """Connections cannot be encrypted as the settings ask for; one line with the remedy."""


class ConnectionEnd(Protocol):
    """One side of one connection. ready: what is sealed now reaches the protocol of the other side."""

    @property
    def ready(self) -> bool:
        """Whether both sides have shown who they are."""
        ...

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Takes in what came; (what it says, what has to be sent back at once). Raises BrokenPeer."""
        ...

    def seal(self, data: bytes) -> bytes:
        """What has to be sent for the other side to read ``data``."""
        ...

    def closing_alert(self) -> bytes:
        """What tells the other side why this one goes, after ``take`` has raised."""
        ...

    def bind(self, secret: bytes) -> bytes:
        """The secret for proofs on this connection and no other one."""
        ...


class PlainEnd:
    """Everything as it is."""

    ready = True

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """(data, nothing)."""
        return data, b""

    def seal(self, data: bytes) -> bytes:
        """The data."""
        return data

    def closing_alert(self) -> bytes:
        """Nothing."""
        return b""

    def bind(self, secret: bytes) -> bytes:
        """The secret."""
        return secret


class TlsEnd:
    """TLS over memory."""

    def __init__(self, context: ssl.SSLContext, *, judge_certificate: bytes | None, not_believed: str) -> None:
        """judge_certificate: the own one (DER) on the judge's side, None on the other, where it is seen.

        not_believed: in words, what it means that the other side's certificate is none that is believed.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=judge_certificate is not None)
        self._judge_certificate = judge_certificate
        self._not_believed = not_believed
        self.ready = False

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """As of every end; with no data a follower's first words are what has to be sent.

        Raises BrokenPeer with the reason for people, which holds what is still to be sent (``closing_alert``).
        """
        self._incoming.write(data)
        said = bytearray()
        try:
            if not self.ready:
                self._tls.do_handshake()
                self.ready = True
            while piece := self._tls.read(_READ_BYTES):
                said += piece
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError as error:  # what came after it would be kept, and never read
            raise BrokenPeer("it has ended the conversation") from error
        except ssl.SSLError as error:
            raise BrokenPeer(_reason_of(error, self._not_believed)) from error
        return bytes(said), self._outgoing.read()

    def closing_alert(self) -> bytes:
        """What tells the other side why this one goes, after ``take`` has raised."""
        return self._outgoing.read()

    def seal(self, data: bytes) -> bytes:
        """As of every end. Only once it is ready."""
        if data:
            self._tls.write(data)
        return self._outgoing.read()

    def bind(self, secret: bytes) -> bytes:
        """The secret, mixed with the certificate that the judge shows here (RFC 5929: tls-server-end-point)."""
        shown = self._judge_certificate or self._tls.getpeercert(binary_form=True) or b""
        return hmac.new(secret, b"tls-server-end-point:" + hashlib.sha256(shown).digest(), hashlib.sha256).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEncryption:
    """What both ends of a job's connections need. certificate: the own one, DER.

    In words, for people: how; and what it means that a certificate is not believed.
    """

    judge: ssl.SSLContext
    follower: ssl.SSLContext
    certificate: bytes
    how: str
    not_believed: str

    def judge_end(self) -> TlsEnd:
        """The judge's end of a new connection."""
        return TlsEnd(self.judge, judge_certificate=self.certificate, not_believed=self.not_believed)

    def follower_end(self) -> TlsEnd:
        """A follower's end of a new connection."""
        return TlsEnd(self.follower, judge_certificate=None, not_believed=self.not_believed)


def encryption_by_secret(secret: bytes) -> PeerEncryption:
    """Key and certificate follow from the secret, the same on all nodes. Raises NoEncryption."""
    try:
        certificate, private_key = _certificate_of(secret)
        with _held(private_key + certificate) as path:
            return _encryption(path, path, certificate.decode(), BY_SECRET, OTHER_SECRET)
    except ImportError as error:
        raise NoEncryption(
            f"nodes cannot talk encrypted: {error}; pip install cryptography, or set peer_cert, peer_key and peer_ca"
        ) from error
    except Exception as error:  # such as an OpenSSL without scrypt (FIPS): the job must start all the same
        raise NoEncryption(f"nodes cannot talk encrypted: {error}; set peer_cert, peer_key and peer_ca") from error


@contextlib.contextmanager
def _held(key: bytes) -> Iterator[Path]:
    """A name for a key, which Python takes by name alone: of memory, or where this Python has none, of a 0600 file."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile() as file:
            file.write(key)
            file.flush()
            yield Path(file.name)
        return
    descriptor = os.memfd_create("whichrank-peer", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, key)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def encryption_by_certificates(certificate: Path, key: Path, authority: Path) -> PeerEncryption:
    """By files of the operator's, PEM; authority: whose certificates are believed. Raises NoEncryption."""
    try:
        trusted = authority.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise NoEncryption(f"peer_ca {authority}: {getattr(error, 'strerror', None) or 'no PEM'}") from error
    try:
        return _encryption(certificate, key, trusted, BY_CERTIFICATES, "certificates must be of peer_ca, on all nodes")
    except ssl.SSLError as error:
        raise NoEncryption(
            f"peer_cert {certificate}, peer_key {key}, peer_ca {authority}: not usable together "
            f"({getattr(error, 'reason', None) or 'no PEM'}); each must be PEM, and the key that of the certificate"
        ) from error
    except OSError as error:
        raise NoEncryption(f"peer_cert {certificate}, peer_key {key}: {error.strerror or error}") from error


def _encryption(certificate: Path, key: Path, trusted: str, how: str, not_believed: str) -> PeerEncryption:
    data = certificate.read_bytes()
    begin, end = data.find(_PEM_BEGIN), data.find(_PEM_END)
    if begin < 0 or end < begin:
        raise ssl.SSLError(1, "no certificate in it")
    own = ssl.PEM_cert_to_DER_cert(data[begin : end + len(_PEM_END)].decode("ascii", "replace"))
    contexts = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False  # the proofs are bound to the certificate, and nodes have many names
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(certificate, key, password=_no_password)  # else it asks on the terminal
        context.load_verify_locations(cadata=trusted)
        contexts.append(context)
    judge, follower = contexts
    judge.num_tickets = 0  # nobody resumes
    return PeerEncryption(judge=judge, follower=follower, certificate=own, how=how, not_believed=not_believed)


def _certificate_of(secret: bytes) -> tuple[bytes, bytes]:
    """Certificate and private key as PEM, which follow from the secret alone. Raises ImportError."""
    from datetime import datetime, timezone

    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509.oid import NameOID

    seed = hashlib.scrypt(
        secret, salt=b"whichrank peers", n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P, maxmem=_SCRYPT_BYTES, dklen=32
    )
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        # No clock is asked: nodes' clocks differ, and the secret has no date.
        .not_valid_before(datetime(2000, 1, 1, tzinfo=timezone.utc))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _no_password() -> bytes:
    return b""


def _reason_of(error: ssl.SSLError, not_believed: str) -> str:
    reason = error.reason or "no TLS"
    if isinstance(error, ssl.SSLCertVerificationError):
        return not_believed if error.verify_code in _UNKNOWN else f"its certificate: {error.verify_message}"
    if reason in _NO_TLS:
        return JUDGE_IS_PLAIN
    what = f"TLS: {reason.replace('_', ' ').lower()}"
    return f"{what}; {not_believed}" if "_ALERT_" in reason else what  # said by the other side
