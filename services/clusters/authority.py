"""Who signs what the machines of one cluster show to each other.

Its key stays with whoever launches the cluster; each machine gets a certificate for its own names
and a key of its own. Both sides of every connection show one.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from repertory.errors import UsageError
from services.secret_file import write_secret

CERTIFICATE = "authority.pem"
KEY = "authority.key"
AUTHORITY_DAYS = 3650
DAYS = 825
BEFORE = datetime.timedelta(hours=1)  # clocks differ a little
LOCAL_NAMES = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Issued:
    certificate: bytes  # PEM
    key: bytes  # PEM


class Authority:
    """Of one cluster, in a folder of its own; made there when it is first asked for."""

    def __init__(self, folder: Path, *, make: bool = True) -> None:
        """Without `make` one that is not there is refused: machines do not make their own."""
        certificate, key = folder / CERTIFICATE, folder / KEY
        try:
            if make:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _found(folder.name, certificate, key)
            self.certificate = certificate.read_bytes()
            self._authority = x509.load_pem_x509_certificate(self.certificate)
            loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise UsageError(f"{folder} has no certificate authority: {error}") from error
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        self._key = loaded

    def issue(self, names: Sequence[str]) -> Issued:
        """For one machine: its name, its address, whatever else it is called."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(names[0], self._authority.subject, key.public_key(), DAYS)
            .add_extension(
                x509.SubjectAlternativeName(
                    [_general(name) for name in dict.fromkeys([*names, *LOCAL_NAMES])]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return Issued(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _found(name: str, certificate: Path, key: Path) -> None:
    """The key is made once; a certificate for it again where that is missing."""
    if not key.exists():
        write_secret(key, _pem(ec.generate_private_key(ec.SECP256R1())))
    if certificate.exists():
        return
    made = serialization.load_pem_private_key(key.read_bytes(), password=None)
    assert isinstance(made, ec.EllipticCurvePrivateKey)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"repertory {name}"[:64])])
    signed = (
        _builder(f"repertory {name}", subject, made.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(made, hashes.SHA256())
    )
    write_secret(certificate, signed.public_bytes(serialization.Encoding.PEM))


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
