"""Certificates made on the fly: an authority, what it signs, and contexts for clients."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A certificate authority whose files lie in `folder`: `<name>.pem` is its own certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, file: str) -> int:
        """Write `<file>.pem` and `<file>.key` for a server on loopback, or a client, called `name`; its serial
        number."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = [x509.DNSName(name)]
        alternatives += [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
        certificate = (
            _builder(_named(name), self._name, key)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        (self._folder / f"{file}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        (self._folder / f"{file}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return certificate.serial_number

    def client_context(self, file: str | None = None) -> ssl.SSLContext:
        """A client that trusts this authority, with the certificate `<file>.pem` if it is given."""
        context = ssl.create_default_context(cafile=str(self.path))
        if file is not None:
            context.load_cert_chain(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        return context


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
