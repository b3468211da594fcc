"""Keys and certificates of the report channel: EC P-256, X.509 v3 by RFC 5280, all PEM."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock_operator.control.rotation import BACKDATED, Issued
from penstock_operator.errors import OperatorError

_CA_USAGE = {"key_cert_sign": True, "crl_sign": True}
_SERVER_USAGE = {"digital_signature": True}
_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


class UnreadableKeys(OperatorError):
    """The stored data is not a certificate, or not its key."""


def make_authority(*, now: float, life: float) -> Issued:
    """Make a new self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    # The name is unique among our authorities, since several are trusted at a time.
    name = _name(f"penstock-operator {_time(now):%Y-%m-%dT%H:%M:%SZ} {x509.random_serial_number():x}"[:60])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _begun(name, name, key, now=now, ends=now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(_CA_USAGE), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
    )
    return _issued(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Issued, *, names: tuple[str, ...], now: float, life: float) -> Issued:
    """Issue a server's certificate; it never outlives its authority.

    Raises:
        UnreadableKeys: the authority's PEM is unreadable.
    """
    parent, parent_key = _load(authority.certificate, authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _begun(_name(names[0][:60]), parent.subject, key, now=now, ends=min(now + life, authority.ends))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(_SERVER_USAGE), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(parent_key.public_key()), critical=False
        )
    )
    return _issued(builder.sign(parent_key, hashes.SHA256()), key)


def read(certificate: bytes, key: bytes) -> Issued:
    """Read a stored certificate and its key, and check them.

    Args:
        certificate: PEM.
        key: PEM of its private key; empty if there is none.

    Raises:
        UnreadableKeys: it is not a certificate, or not its key.
    """
    parsed, _ = _load(certificate, key) if key else (_certificate(certificate), None)
    return Issued(
        certificate=certificate,
        key=key,
        begins=parsed.not_valid_before_utc.timestamp(),
        ends=parsed.not_valid_after_utc.timestamp(),
        names=_names(parsed),
    )


def signed_by(issued: Issued, authority: Issued) -> bool:
    """Whether an authority signed a certificate."""
    try:
        _certificate(issued.certificate).verify_directly_issued_by(_certificate(authority.certificate))
    except Exception:  # the library has no common type for the faults of an arbitrary certificate
        return False
    return True


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, now: float, ends: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now - BACKDATED))
        .not_valid_after(_time(ends))
    )


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        begins=certificate.not_valid_before_utc.timestamp(),
        ends=certificate.not_valid_after_utc.timestamp(),
        names=_names(certificate),
    )


def _load(certificate: bytes, key: bytes) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    parsed = _certificate(certificate)
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError) as error:
        raise UnreadableKeys(f"expected a private key in PEM: {error}") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != parsed.public_key():
        raise UnreadableKeys("expected the certificate's own EC key, found another")
    return parsed, private


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise UnreadableKeys(f"expected a certificate in PEM: {error}") from error


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in extension)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(granted: dict[str, bool]) -> x509.KeyUsage:
    return x509.KeyUsage(**(dict.fromkeys(_USAGES, False) | granted))


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
