"""A certificate authority in a directory: `ca.key` (0600), and `ca.pem` with every certificate to trust.

Owns those two files. The newest authority is the first in `ca.pem` and signs; older ones stay there until
they are retired, so that hosts trust both while certificates are replaced. Connects to nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom.errors import Conflict, HomeUnusable, NotFound, UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_DAYS, HOST_DAYS = 3650, 397
"""Browsers refuse certificates of servers that are valid for longer than 398 days."""
BACKDATED = datetime.timedelta(days=1)
"""Clocks of hosts differ, by hours where one has the wrong time zone, and a new host must not be refused."""
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)


def pieces(bundle: str) -> list[str]:
    """The certificates in a PEM text, each as PEM."""
    return _PEM.findall(bundle)


def fingerprint(pem: str) -> str:
    """SHA-256 of a certificate."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


class Authority:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def bundle_file(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def key_file(self) -> Path:
        return self.directory / "ca.key"

    def bundle(self) -> str:
        try:
            return self.bundle_file.read_text()
        except OSError:
            raise NotFound(
                f"there is no certificate authority in {self.directory}", hint="make one with `loom ca make`"
            ) from None

    def newest(self) -> x509.Certificate:
        """The one that signs."""
        from cryptography import x509

        known = pieces(self.bundle())
        try:
            return x509.load_pem_x509_certificate(known[0].encode())
        except (IndexError, ValueError):
            raise HomeUnusable(
                f"{self.bundle_file} holds no certificate that can be read", hint="restore it from a copy"
            ) from None

    def _signer(self) -> tuple[x509.Certificate, Any]:
        """The newest authority and its key."""
        from cryptography.hazmat.primitives import serialization

        issuer = self.newest()
        try:
            key: Any = serialization.load_pem_private_key(self.key_file.read_bytes(), password=None)
        except (ValueError, TypeError):
            raise HomeUnusable(f"{self.key_file} is not a key", hint="restore it from a copy") from None
        if key.public_key() != issuer.public_key():
            raise HomeUnusable(
                f"{self.key_file} is not the key of the first certificate in {self.bundle_file}",
                hint="restore both from a copy",
            )
        return issuer, key

    def make(self, name: str, days: float = CA_DAYS) -> None:
        """The first one."""
        if self.key_file.exists():
            raise Conflict(
                f"there is a certificate authority in {self.directory} already",
                hint="`loom ca rotate` adds a new one",
            )
        self._add(name, days, [])

    def rotate(self, name: str, days: float = CA_DAYS) -> None:
        """Make a new one that signs from now on. Older ones are still trusted."""
        self.newest()
        self._add(name, days, pieces(self.bundle()))

    def retire(self) -> int:
        """Stop trusting all but the newest; how many were dropped."""
        self.newest()
        known = pieces(self.bundle())
        _write(self.bundle_file, known[0], 0o644)
        return len(known) - 1

    def signed(self, pem_file: Path) -> bool:
        """Whether the newest authority signed the first certificate of a file."""
        from cryptography.exceptions import InvalidSignature

        newest, found = self.newest(), _first(pem_file)
        try:
            found.verify_directly_issued_by(newest)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True

    def issue(self, names: list[str], days: float = HOST_DAYS) -> tuple[str, str]:
        """A certificate for a host that has these names and addresses, and its key."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.x509.oid import ExtendedKeyUsageOID

        check_names(names)
        issuer, signer = self._signer()
        key = _new_key()
        now = datetime.datetime.now(datetime.UTC)
        made = (
            _builder(names[0], issuer.subject, key, now, datetime.timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([_alternative(one) for one in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
            )
            .sign(signer, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode(), _key_text(key)

    def _add(self, name: str, days: float, older: list[str]) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        key, now = _new_key(), datetime.datetime.now(datetime.UTC)
        subject = x509.Name(
            [
                x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64]),
                # Two authorities of one name would be mistaken for each other.
                x509.NameAttribute(x509.NameOID.SERIAL_NUMBER, os.urandom(8).hex()),
            ]
        )
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            _builder("", subject, key, now, datetime.timedelta(days=days))
            .subject_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(self.key_file, _key_text(key), 0o600)
        text = made.public_bytes(serialization.Encoding.PEM).decode()
        _write(self.bundle_file, "".join([text, *older]), 0o644)


def write_issued(directory: Path, certificate: str, key: str) -> None:
    """Replace a host's certificate and key. Readers load both together, and again if they do not match."""
    _write(directory / "host.key", key, 0o600)
    _write(directory / "host.pem", certificate, 0o644)


def ends_at(pem_file: Path) -> datetime.datetime:
    """When the first certificate of a file ends."""
    return _first(pem_file).not_valid_after_utc


def _first(pem_file: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pieces(pem_file.read_text())[0].encode())
    except (IndexError, ValueError):
        raise HomeUnusable(
            f"{pem_file} holds no certificate that can be read", hint="`loom ca renew` makes a new one"
        ) from None


def check_names(names: list[str]) -> None:
    """Raises UsageError if a certificate cannot be for one of these names and addresses."""
    if not names:
        raise UsageError("a certificate needs a name or an address")
    for name in names:
        if not _is_address(name) and not (_NAME.fullmatch(name) and len(name) <= 253):
            raise UsageError(
                f"{name[:64]!r} is neither an address nor the name of a host",
                hint="names have letters, digits, hyphens and dots; *. may come first",
            )


def check_days(days: float) -> None:
    """Raises UsageError if a certificate cannot be valid for so long."""
    if not 1 <= days <= CA_DAYS:
        raise UsageError(f"--days is a number from 1 to {CA_DAYS}, not {days:g}")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_available() -> None:
    """Raises UsageError if this installation cannot make certificates."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise UsageError(
            "making certificates needs the package cryptography", hint="pip install 'torchloom[cluster]'"
        ) from None


def _builder(
    name: str,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    for_: datetime.timedelta,
) -> x509.CertificateBuilder:
    from cryptography import x509

    made = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED + min(for_, datetime.timedelta()))
        .not_valid_after(now + for_)
    )
    if name:
        made = made.subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])]))
    return made


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509

    return x509.IPAddress(ipaddress.ip_address(name)) if _is_address(name) else x509.DNSName(name)


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _write(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically; it has its mode from the first byte on."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
