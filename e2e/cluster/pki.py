"""A certificate authority for one cluster, and the keys of its service accounts."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = timedelta(days=365)


@dataclass(frozen=True)
class Identity:
    """PEM files of one certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Keeps its files in one folder, where a later process finds them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"

    def create(self) -> None:
        self._folder.mkdir(parents=True)
        key = new_key(self._key)
        name = _name("kvloop-cluster", ())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        _write(self.certificate, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def identity(self, user: str) -> Identity:
        """The files of what `issue` issued to that user last."""
        stem = user.replace(":", "_").replace("/", "_")
        return Identity(self._folder / f"{stem}.crt", self._folder / f"{stem}.key")

    def issue(self, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> Identity:
        """Issue a certificate to a user of these groups, which also serves for these names and addresses."""
        authority = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        authority_key = serialization.load_pem_private_key(self._key.read_bytes(), password=None)
        assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
        identity = self.identity(user)
        key = new_key(identity.key)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = (
            _builder(_name(user, groups), authority.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        _write(
            identity.certificate, builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        return identity


def new_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Make a private key and write it to a PEM file that only its owner can read."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    _write(file, pem)
    return key


def write_public_key(key: ec.EllipticCurvePrivateKey, file: Path) -> None:
    _write(
        file, key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + _VALID)
    )


def _name(user: str, groups: Sequence[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(file: Path, content: bytes) -> None:
    file.touch(mode=0o600)
    file.write_bytes(content)
