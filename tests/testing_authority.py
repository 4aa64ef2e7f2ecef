"""A certificate authority of the tests' own, and a certificate for 127.0.0.1."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Key = ec.EllipticCurvePrivateKey


class Authority:
    """Files in `directory`: `ca_file` to be trusted, and `server` (certificate, key)."""

    def __init__(self, directory: Path) -> None:
        ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        ca_name = _name("Authority of the tests")
        ca = (
            _certificate(ca_name, ca_name, ca_key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(ca_key, hashes.SHA256())
        )
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            _certificate(_name("Server of the tests"), ca_name, key)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
        self.server = directory / "server.pem", directory / "server.key"
        self.server[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.server[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _certificate(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
