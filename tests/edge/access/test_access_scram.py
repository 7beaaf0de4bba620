"""SCRAM-SHA-256: the published exchange, every way it can go wrong, and users who are not there."""

from __future__ import annotations

import base64
import random

import pytest
from support.scram_client import ScramClient

from edge.access.scram import (
    ITERATIONS,
    ITERATIONS_MIN,
    ScramError,
    ScramExchange,
    ScramKeys,
    derive_keys,
    keys_of_nobody,
    saslprep,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KEYS = derive_keys("pencil", SALT, 4_096)
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = "rOprNGfwEbeRWgbNEkqO" + SERVER_NONCE


def exchange(keys: ScramKeys = KEYS) -> ScramExchange:
    return ScramExchange(lambda user: keys, SERVER_NONCE)


def test_the_exchange_of_rfc_7677() -> None:
    it = exchange()
    assert it.first(FIRST) == f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    final = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    assert it.final(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert it.user == "user"


@pytest.mark.parametrize("gs2", ["n,,", "y,,", "n,a=user,", "y,a=user,"])
def test_a_client_that_could_bind_channels_but_does_not(gs2: str) -> None:
    client, it = ScramClient("user", "pencil", gs2=gs2), exchange()
    assert it.final(client.final(it.first(client.first()))) == client.expected


@pytest.mark.parametrize("user", ["a,b", "a=b", "=2C", "=,=", "Jörg", "\u2168", "ann\u00ad"])
def test_user_names_are_unescaped_and_prepared(user: str) -> None:
    client, it = ScramClient(user, "pencil"), exchange()
    it.final(client.final(it.first(client.first())))
    assert it.user == {"\u2168": "IX", "ann\u00ad": "ann"}.get(user, user)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (b"", "no GS2 header"),
        (b"n", "no GS2 header"),
        (b"n,n=user", "no GS2 header"),
        (b"p=tls-exporter,,n=user,r=abc", "channel binding is not offered"),
        (b"x,,n=user,r=abc", "an unknown GS2 flag"),
        (b"N,,n=user,r=abc", "an unknown GS2 flag"),
        (b"n,,m=x,n=user,r=abc", "asks for an extension"),
        (b"n,,n=user", "names no user and nonce"),
        (b"n,,r=abc,n=user", "names no user and nonce"),
        (b"n,,n=user,r=", "a nonce that is empty"),
        (b"n,,n=user,r=a b", "not printable"),
        (b"n,,n=user,r=\xc3\xa9", "not printable"),
        (b"n,,n=user,r=abc\n", "not printable"),
        (b"n,,n=a=b,r=abc", "bare '='"),
        (b"n,,n=a=2c,r=abc", "bare '='"),
        (b"n,,n=a=,r=abc", "bare '='"),
        (b"n,,n=,r=abc", "user name: empty"),
        (b"n,,n=a\x07,r=abc", "prohibits"),
        (b"n,,n=a\x00,r=abc", "NUL"),
        (b"n,,n=\xff,r=abc", "not UTF-8"),
        (b"n,a=root,n=user,r=abc", "nobody acts for another user"),
        (b"n,root,n=user,r=abc", "nobody acts for another user"),
    ],
)
def test_a_wrong_client_first(message: bytes, complaint: str) -> None:
    with pytest.raises(ScramError, match=complaint):
        exchange().first(message)


def good_final() -> bytes:
    client, it = ScramClient("user", "pencil"), exchange()
    return client.final(it.first(client.first()))


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (b"c=biws", b"c=eSws", "another GS2 header"),
        (b"c=biws", b"c=", "another GS2 header"),
        (b"c=biws", b"x=biws", "another GS2 header"),
        (NONCE.encode(), NONCE[:-1].encode(), "another nonce"),
        (NONCE.encode(), b"rOprNGfwEbeRWgbNEkqO", "another nonce"),
        (NONCE.encode(), "é".encode(), "another nonce"),
        (b",p=", b",q=", "no proof"),
        (b"c=biws,r=" + NONCE.encode(), b"c=biws", "no proof"),
        (b",p=", b",p=!", "a proof that is none"),
        (b",p=", b",p=AAAA", "a proof that is none"),
        (b",p=", b",x=extension,p=", "the proof is wrong"),
    ],
)
def test_a_wrong_client_final(before: bytes, after: bytes, complaint: str) -> None:
    it = exchange()
    it.first(FIRST)
    message = good_final().replace(before, after)
    assert message != good_final()
    with pytest.raises(ScramError, match=complaint):
        it.final(message)


@pytest.mark.parametrize("password", ["Pencil", "pencil ", "", "pencilpencil"])
def test_a_wrong_password(password: str) -> None:
    client, it = ScramClient("user", password), exchange()
    with pytest.raises(ScramError, match="the proof is wrong"):
        it.final(client.final(it.first(client.first())))


def test_a_final_of_another_exchange_proves_nothing() -> None:
    other = ScramExchange(lambda user: KEYS, "another-nonce")
    other.first(FIRST)
    with pytest.raises(ScramError, match="another nonce"):
        other.final(good_final())


def test_any_bytes_give_an_answer_or_the_one_error() -> None:
    seed = 20261121
    random.seed(seed)
    for _ in range(20_000):
        it = exchange()
        for step, message in ((it.first, bytearray(FIRST)), (it.final, bytearray(good_final_cached()))):
            for _ in range(random.randrange(3)):
                message[random.randrange(len(message))] = random.randrange(256)
            try:
                answer = step(bytes(message))
            except ScramError:
                break
            assert answer, f"seed {seed}"


_GOOD: list[bytes] = []


def good_final_cached() -> bytes:
    if not _GOOD:
        _GOOD.append(good_final())
    return _GOOD[0]


def test_a_user_who_is_not_there_looks_like_one() -> None:
    """The salt is the same each time, another for each name and each secret, and no password fits."""
    one, again = keys_of_nobody("eve", b"secret", 4_096), keys_of_nobody("eve", b"secret", 4_096)
    assert one == again
    assert len(one.salt) == len(SALT)
    assert (
        len({one.salt, keys_of_nobody("Eve", b"secret", 4_096).salt, keys_of_nobody("eve", b"other", 4_096).salt}) == 3
    )
    for password in ("", "eve", "pencil"):
        client, it = ScramClient("eve", password), exchange(one)
        with pytest.raises(ScramError, match="the proof is wrong"):
            it.final(client.final(it.first(client.first())))


def test_stored_keys_as_text() -> None:
    text = KEYS.to_text()
    assert text.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert ScramKeys.from_text(text) == KEYS
    stored = base64.b64encode(KEYS.stored_key).decode()
    for wrong in (
        "",
        "x",
        text.replace("256", "1"),
        text.replace("4096", "4095"),
        text.replace("4096", "99999999"),
        text.replace("4096", "-4096"),
        text.replace("4096", "\u0664096"),
        text.replace("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
        text.replace("W22Z", "!!!!"),
        text.replace(stored, ""),
        text.replace(stored, stored[4:]),
        text[:-1],
    ):
        with pytest.raises(ValueError):
            ScramKeys.from_text(wrong)


def test_keys_are_not_shown() -> None:
    assert repr(KEYS) == "ScramKeys(iterations=4096)"


def test_the_default_cost_is_owasps() -> None:
    assert (ITERATIONS, ITERATIONS_MIN) == (600_000, 4_096)
    assert derive_keys("pencil", SALT).iterations == 600_000
    with pytest.raises(ValueError, match="4096 to"):
        derive_keys("pencil", SALT, 4_095)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0627\u0031\u0628", "\u06271\u0628"),
    ],
)
def test_saslprep(text: str, prepared: str) -> None:
    """The examples of RFC 4013, section 3, and a few more."""
    assert saslprep(text) == prepared


@pytest.mark.parametrize(
    "text", ["\u0007", "\u0627\u0031", "\u0627a\u0628", "", "\u00ad", "\ue000", "\ufffd", "\u200e"]
)
def test_saslprep_prohibits(text: str) -> None:
    with pytest.raises(ValueError):
        saslprep(text, is_query=True)


def test_characters_newer_than_unicode_3_2_are_for_queries_only() -> None:
    assert saslprep("\U0001f511", is_query=True) == "\U0001f511"
    with pytest.raises(ValueError, match=r"Unicode 3\.2"):
        saslprep("\U0001f511")
