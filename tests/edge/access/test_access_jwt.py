"""Tokens: what makes one good, every way of being bad, and the keys that are taken from a JWKS."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from edge.access.jwt_tokens import KEYS_MAX, TOKEN_BYTES_MAX, JwtAuthenticator, parse_jwks
from edge.access.principal import Credentials, Principal
from schemas.errors import ConfigurationError

EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=1024)
OTHER_EC_KEY = ec.generate_private_key(ec.SECP256R1())

EC_JWK: dict[str, Any] = ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True) | {"kid": "ec", "alg": "ES256"}
ED_JWK: dict[str, Any] = OKPAlgorithm.to_jwk(ED_KEY.public_key(), as_dict=True) | {"kid": "ed"}
RSA_JWK: dict[str, Any] = RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True) | {"kid": "rsa", "alg": "PS256"}
WEAK_JWK: dict[str, Any] = RSAAlgorithm.to_jwk(WEAK_RSA_KEY.public_key(), as_dict=True) | {"kid": "weak"}
OCT_JWK = {"kty": "oct", "kid": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"}

NOW = time.time()


def claims(**changes: Any) -> dict[str, Any]:
    good = {"sub": "pump", "iss": "https://issuer.example", "aud": "headwater", "exp": int(NOW) + 3_600}
    return {name: value for name, value in (good | changes).items() if value is not None}


def token(body: dict[str, Any] | None = None, key: Any = EC_KEY, alg: str = "ES256", kid: str | None = "ec") -> bytes:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims() if body is None else body, key, alg, headers).encode()


@pytest.fixture
def write_keys(tmp_path: Path) -> Callable[..., Path]:
    def write(*keys: dict[str, Any]) -> Path:
        made = tmp_path / "made.json"
        made.write_text(json.dumps({"keys": keys}))
        return made.replace(tmp_path / "jwks.json")

    return write


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[JwtAuthenticator]:
    given = {"issuer": "https://issuer.example", "audience": "headwater", "reload_s": 3_600.0} | options
    authenticator = JwtAuthenticator(path, **given)
    await authenticator.start()
    try:
        yield authenticator
    finally:
        await authenticator.stop()


async def ask(authenticator: JwtAuthenticator, password: bytes | None) -> Principal | None:
    return await authenticator.authenticate(Credentials("c", "ignored", password, "192.0.2.1", 5))


@pytest.mark.parametrize(
    ("key", "alg", "kid"), [(EC_KEY, "ES256", "ec"), (ED_KEY, "EdDSA", "ed"), (RSA_KEY, "PS256", "rsa")]
)
async def test_a_good_token_is_its_subject_until_it_ends(
    write_keys: Callable[..., Path], key: Any, alg: str, kid: str
) -> None:
    async with running(write_keys(EC_JWK, ED_JWK, RSA_JWK)) as authenticator:
        principal = await ask(authenticator, token(key=key, alg=alg, kid=kid))
    assert principal == Principal("pump", "c", "192.0.2.1", expires_at=int(NOW) + 3_600.0)


BAD_CLAIMS = [
    {"sub": None},
    {"sub": ""},
    {"sub": "pu\nmp"},
    {"iss": None},
    {"iss": "https://other.example"},
    {"aud": None},
    {"aud": "other"},
    {"aud": []},
    {"exp": None},
    {"exp": int(NOW) - 1},
    {"exp": int(NOW) + 7 * 24 * 3_600},  # far: NOW was when the tests were collected
    {"exp": "soon"},
    {"exp": True},
    {"nbf": int(NOW) + 3_000},
    {"iat": int(NOW) + 3_000},
]


@pytest.mark.parametrize("change", BAD_CLAIMS, ids=str)
async def test_a_token_with_wrong_claims_is_refused(write_keys: Callable[..., Path], change: dict[str, Any]) -> None:
    body = claims(**change)
    if change.get("sub", "x") is None:
        body.pop("sub", None)
    async with running(write_keys(EC_JWK)) as authenticator:
        assert await ask(authenticator, token(body)) is None
        assert authenticator.statistics()["refused"] == 1


async def test_a_numeric_subject_is_refused(write_keys: Callable[..., Path]) -> None:
    made = jwt.api_jws.encode(json.dumps(claims(sub=7)).encode(), EC_KEY, "ES256", {"kid": "ec"}).encode()
    async with running(write_keys(EC_JWK)) as authenticator:
        assert await ask(authenticator, made) is None


PUBLIC_PEM = EC_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def signed_with_the_public_key() -> bytes:
    """The classic confusion: an HMAC whose secret is the public key that everybody has."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = part(b'{"alg":"HS256","typ":"JWT","kid":"ec"}') + b"." + part(json.dumps(claims()).encode())
    return signed + b"." + part(hmac.new(PUBLIC_PEM, signed, hashlib.sha256).digest())


@pytest.mark.parametrize(
    "bad",
    [
        None,
        b"",
        b"x",
        b"a.b.c",
        b"\xff\xfe.\xff.\xff",
        b"." * TOKEN_BYTES_MAX,
        b"x" * (TOKEN_BYTES_MAX + 1),
        token(key=OTHER_EC_KEY),
        token(kid="unknown"),
        token(kid=None),
        token(key=RSA_KEY, alg="RS256", kid="rsa"),
        token(key=RSA_KEY, alg="PS256", kid="ec"),
        token(key=ED_KEY, alg="EdDSA", kid="ec"),
        token(key=None, alg="none"),
        signed_with_the_public_key(),
        token()[:-4] + b"AAAA",
    ],
    ids=range(16),
)
async def test_a_token_that_is_not_signed_by_the_named_key_is_refused(
    write_keys: Callable[..., Path], bad: bytes | None
) -> None:
    async with running(write_keys(EC_JWK, RSA_JWK)) as authenticator:
        assert await ask(authenticator, bad) is None


async def test_without_a_kid_the_only_key_is_meant(write_keys: Callable[..., Path]) -> None:
    async with running(write_keys(EC_JWK)) as authenticator:
        assert await ask(authenticator, token(kid=None)) is not None


async def test_the_list_of_algorithms_can_be_narrowed(write_keys: Callable[..., Path]) -> None:
    async with running(write_keys(EC_JWK, ED_JWK), algorithms=["EdDSA"]) as authenticator:
        assert await ask(authenticator, token()) is None
        assert await ask(authenticator, token(key=ED_KEY, alg="EdDSA", kid="ed")) is not None


async def test_new_keys_are_taken_over_and_broken_ones_are_not(write_keys: Callable[..., Path]) -> None:
    path = write_keys(EC_JWK)
    async with running(path) as authenticator:
        assert not await authenticator.reload_if_changed()
        write_keys(ED_JWK)
        assert await authenticator.reload_if_changed()
        assert await ask(authenticator, token()) is None
        assert await ask(authenticator, token(key=ED_KEY, alg="EdDSA", kid="ed")) is not None
        write_keys(OCT_JWK)
        with pytest.raises(ConfigurationError):
            await authenticator.reload_if_changed()
        assert await ask(authenticator, token(key=ED_KEY, alg="EdDSA", kid="ed")) is not None


async def test_a_token_near_its_end_is_held_against_the_clock(write_keys: Callable[..., Path]) -> None:
    clock = [NOW]
    async with running(write_keys(EC_JWK), clock=lambda: clock[0]) as authenticator:
        assert await ask(authenticator, token()) is not None
        clock[0] = int(NOW) + 3_600.0
        assert await ask(authenticator, token()) is None, "no leeway for the end: the connection ends then"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b"[]", 'a list "keys"'),
        (b'{"keys":[]}', 'a list "keys"'),
        (json.dumps({"keys": [EC_JWK] * (KEYS_MAX + 1)}).encode(), 'a list "keys"'),
        (b'{"keys":[1]}', "key 1: not a key"),
        (json.dumps({"keys": [EC_JWK | {"kid": 1}]}).encode(), "key 1: not a key"),
        (json.dumps({"keys": [EC_JWK, EC_JWK]}).encode(), "key 2: a second key"),
        (json.dumps({"keys": [WEAK_JWK]}).encode(), "key 1: an RSA key of less than 2048 bits"),
        (json.dumps({"keys": [EC_JWK, OCT_JWK]}).encode(), "key 2: algorithm HS256"),
        (json.dumps({"keys": [EC_JWK | {"d": "c2VjcmV0"}]}).encode(), "key 1: a private key"),
        (json.dumps({"keys": [{"kty": "EC"}]}).encode(), "key 1: InvalidKeyError"),
        (json.dumps({"keys": [{"kty": "?"}]}).encode(), "key 1: InvalidKeyError"),
    ],
)
def test_wrong_keys_are_named_and_not_shown(content: bytes, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_jwks(content)
    assert why in str(caught.value)
    assert "c2VjcmV0" not in str(caught.value)


def test_what_would_let_anybody_in_is_refused(tmp_path: Path) -> None:
    for wrong in ({"issuer": ""}, {"audience": ""}, {"algorithms": ["HS256"]}, {"algorithms": ["none"]}):
        with pytest.raises(ConfigurationError, match="JWT"):
            JwtAuthenticator(tmp_path, **({"issuer": "i", "audience": "a"} | wrong))


async def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="public keys"):
        await JwtAuthenticator(tmp_path / "none", issuer="i", audience="a").start()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("watch")]
