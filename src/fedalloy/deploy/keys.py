"""The keys of a deployment: a certificate authority, the server's certificate, one key per site, secrets."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import secrets
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LASTS = datetime.timedelta(days=825)  # the longest validity that common clients accept for a server certificate
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Pair:
    """A private key and its public part."""

    private: bytes
    public: bytes


@dataclass(frozen=True)
class Authority:
    """A certificate authority for a single deployment."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pair(self) -> Pair:
        """The contents of its files."""
        return Pair(_private(self.key), self.certificate.public_bytes(_PEM))


def authority() -> Authority:
    """Create a new authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedalloy deployment authority")
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _certificate(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Authority(key, certificate)


def read_authority(private: bytes, certificate: bytes) -> Authority:
    """Read an authority from the contents of its files; a ValueError says what is wrong with them."""
    key, found = serialization.load_pem_private_key(private, None), x509.load_pem_x509_certificate(certificate)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != found.public_key():
        raise ValueError("the key does not belong to the certificate")
    return Authority(key, found)


def certified(private: bytes, certificate: bytes) -> bool:
    """Return whether a certificate belongs to a private key."""
    key, found = serialization.load_pem_private_key(private, None), x509.load_pem_x509_certificate(certificate)
    return key.public_key() == found.public_key()


def server_certificate(issuer: Authority, host: str) -> Pair:
    """Create a certificate for the host, and for 127.0.0.1, which the server's own processes use."""
    key = ec.generate_private_key(ec.SECP384R1())
    names = list(dict.fromkeys([_general_name(host), _general_name("127.0.0.1"), _general_name("localhost")]))
    certificate = (
        _certificate(_name(host), issuer.certificate.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False)
        .sign(issuer.key, hashes.SHA384())
    )
    return Pair(_private(key), certificate.public_bytes(_PEM))


def node_key() -> Pair:
    """Create a site's key: ECDSA on P-384 in OpenSSH format, which Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    private = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    return Pair(private, public + b"\n")


def public_pem(public: bytes) -> bytes:
    """Convert a public key in OpenSSH format to the form in which Flower compares keys; a ValueError says why not.

    >>> public_pem(node_key().public)[:26]
    b'-----BEGIN PUBLIC KEY-----'
    """
    try:
        key = serialization.load_ssh_public_key(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"it is not in OpenSSH format ({error})") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("it is not an ECDSA key; create one with `ssh-keygen -t ecdsa -b 384`")
    return _pem(key)


def public_of(private: bytes) -> bytes:
    """Return the public part of a site's private key, as `public_pem` does; empty if this is not such a key."""
    try:
        key = serialization.load_ssh_private_key(private, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return b""
    return _pem(key.public_key()) if isinstance(key, ec.EllipticCurvePrivateKey) else b""


def fingerprint(pem: bytes) -> str:
    """Return the SHA-256 digest of a public key."""
    return hashlib.sha256(pem).hexdigest()


def _pem(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def secret() -> bytes:
    """Create the secret with which a SuperExec authenticates, so that no other process is given work."""
    return secrets.token_hex(32).encode()


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of sites differ
        .not_valid_after(now + LASTS)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
