"""Certificates of an authority that only the tests know, and what servers and clients do with them."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "blind", "serving"]

DAY = dt.timedelta(days=1)

_ISSUING = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Issues certificates, into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.count = 0
        own = self._begun(self.name, self.key, days=30)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        own = own.add_extension(_ISSUING, critical=True)
        self.pem = own.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, *hosts: str, days: int = 30) -> Path:
        """The file with a certificate for these hosts, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"one of {hosts[0]}")])
        names = x509.SubjectAlternativeName([_name(host) for host in hosts])
        certificate = self._begun(name, key, days).add_extension(names, critical=False).sign(self.key, hashes.SHA256())
        self.count += 1
        file = self.folder / f"{self.count}.pem"
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write_bytes(key.private_bytes(*form) + certificate.public_bytes(serialization.Encoding.PEM))
        return file

    def trusted(self, certificate: Path | None = None) -> ssl.SSLContext:
        """How a client trusts this authority, and no other; with a certificate of its own, if it has one."""
        context = ssl.create_default_context(cadata=self.pem)
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as from Python 3.13 on
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    def _begun(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        begun = x509.CertificateBuilder(
            issuer_name=self.name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - 10 * DAY,
            not_valid_after=now + days * DAY,
        )
        own, issuer = (x509.SubjectKeyIdentifier.from_public_key(one.public_key()) for one in (key, self.key))
        named = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
        return begun.add_extension(own, critical=False).add_extension(named, critical=False)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def serving(
    certificate: Path, *, clients_of: Authority | None = None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """How a server shows its certificate; and wants one of its clients, of an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.maximum_version = version
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients_of.pem)
    return context


def blind() -> ssl.SSLContext:
    """How a client trusts everybody."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
