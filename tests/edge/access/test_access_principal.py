"""Principals: what a certificate names, and what never shows in a representation."""

from __future__ import annotations

import pytest

from edge.access.authentication import CertificateAuthenticator
from edge.access.principal import Credentials, Principal, principal_from_certificate


def subject(*names: str) -> dict[str, object]:
    return {"subject": tuple((("commonName", name),) for name in names)}


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, None),
        ({}, None),
        (subject("pump"), "pump"),
        (subject("pump", "other"), None),
        (subject(""), None),
        (subject("pu\x00mp"), None),
        ({"subject": ((("countryName", "CH"), ("commonName", "pump")),)}, "pump"),
        (subject("cn") | {"subjectAltName": (("DNS", "pump.example"), ("URI", "urn:x"))}, "pump.example"),
        (subject("cn") | {"subjectAltName": (("URI", "urn:dev:1"), ("DNS", "pump.example"))}, "urn:dev:1"),
        (subject("cn") | {"subjectAltName": (("email", "a@b"),)}, "a@b"),
        (subject("cn") | {"subjectAltName": (("IP Address", "192.0.2.1"),)}, "cn"),
        (subject("cn") | {"subjectAltName": (("DNS", "a\nb"),)}, None),
    ],
)
def test_a_certificate_names_its_san_then_its_cn(certificate: dict[str, object] | None, name: str | None) -> None:
    assert principal_from_certificate(certificate) == name


async def test_mtls_makes_the_subject_the_principal() -> None:
    authenticator = CertificateAuthenticator()
    await authenticator.start()
    credentials = Credentials("c", "somebody-else", b"pw", "192.0.2.1", 5, tls_subject="pump")
    assert await authenticator.authenticate(credentials) == Principal("pump", "c", "192.0.2.1")
    assert await authenticator.authenticate(Credentials("c", "pump", b"pw", "192.0.2.1", 5)) is None
    await authenticator.stop()
    assert authenticator.statistics() == {"accepted": 1, "refused": 1}


def test_credentials_do_not_show_their_secret() -> None:
    shown = repr(Credentials("c", "ann", b"canary-in-the-mine", "", 5, tls_certificate=b"canary"))
    assert "canary" not in shown
    assert "ann" in shown
