"""Keys, tokens, certificates and password files for tests of security, and brokers' settings that use them.

Everything is created in the test's directory.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bcrypt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from anabranch.security import tokens

SECRET = bytes(range(100, 132))
PASSWORDS = {"alice": "wonder land", "bob": "builder:with:colons", "carol": "pâté"}


def token_of(role: str, *, seconds: float | None = None, secret: bytes = SECRET, **claims: Any) -> str:
    """A token for `role`, valid for so many seconds from now (negative: no longer)."""
    said: dict[str, Any] = {"sub": role, **claims}
    if seconds is not None:
        said["exp"] = time.time() + seconds
    return tokens.make_token(said, tokens.secret_keys(secret)[0])


def basic_header(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def write_secret(directory: Path) -> Path:
    path = directory / "secret.key"
    path.write_bytes(SECRET)
    return path


def write_htpasswd(directory: Path, **users: str) -> Path:
    """alice with bcrypt, bob with apr1, all others with {SHA}."""
    from anabranch.security.htpasswd import apr1

    lines = ["# users of a test", ""]
    for user, password in (users or PASSWORDS).items():
        if user == "alice":
            stored = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$", 1)
        elif user == "bob":
            stored = apr1(password.encode(), "saltsalt")
        else:
            stored = "{SHA}" + base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()
        lines.append(f"{user}:{stored}")
    path = directory / "users.htpasswd"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True)
class KeyFiles:
    certificate: Path
    key: Path


class Authority:
    """A certificate authority of a test."""

    def __init__(self, directory: Path, name: str = "test-ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        self._certificate = (
            _builder(subject, subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, *common_names: str, file: str | None = None) -> KeyFiles:
        """A certificate for localhost with these common names (usually one)."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        made = (
            _builder(_name(*common_names), self._certificate.subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = file or common_names[0]
        files = KeyFiles(self._directory / f"{stem}.cert.pem", self._directory / f"{stem}.key.pem")
        files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def _name(*common_names: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])


def _builder(subject: x509.Name, issuer: x509.Name, key: Any) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
