"""SCRAM-SHA-256, the server's side: RFC 5802 with the hash of RFC 7677. Pure: nonces and secrets are arguments.

    client -> server   n,,n=user,r=CNONCE                          client-first
    server -> client   r=CNONCE+SNONCE,s=SALT,i=ITERATIONS         server-first
    client -> server   c=biws,r=CNONCE+SNONCE,p=PROOF              client-final
    server -> client   v=SIGNATURE                                 server-final

The password never travels and is not stored: a stolen `StoredKey` lets its thief guess offline, at ITERATIONS hashes a
guess, but not log in. Channel binding is not offered: `n` and `y` are right, `p` is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

METHOD: Final = "SCRAM-SHA-256"
ITERATIONS_MIN: Final = 4_096  # RFC 7677, section 4
ITERATIONS_MAX: Final = 10_000_000  # several seconds on any client: a mistake
ITERATIONS: Final = 600_000
"""OWASP's number for PBKDF2-HMAC-SHA256. Only clients pay it, at each connect: 0.3 s on a PC. A microcontroller that
cannot within the 10 s for a CONNECT needs fewer; with a random 128-bit secret for a password, 4,096 are enough."""
SALT_BYTES: Final = 16
KEY_BYTES: Final = hashlib.sha256().digest_size

_PRINTABLE: Final = re.compile(r"[!-+\--~]+")  # RFC 5802, section 7: a nonce, printable ASCII but ','
_SASLNAME_ESCAPES: Final = re.compile(r"=(2C|3D|)")


class ScramError(Exception):
    """The exchange has failed. The text is for the log; a client hears "not authorized", whatever it was."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What is stored of a password."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def to_text(self) -> str:
        """As in the file, and as PostgreSQL stores it: `SCRAM-SHA-256$i:salt$StoredKey:ServerKey`."""
        return (
            f"{METHOD}${self.iterations}:{_encoded(self.salt)}${_encoded(self.stored_key)}:{_encoded(self.server_key)}"
        )

    @classmethod
    def from_text(cls, text: str) -> ScramKeys:
        """The reverse of `to_text`. Raises ValueError."""
        method, _, rest = text.partition("$")
        cost, _, keys = rest.partition("$")
        iterations, _, salt = cost.partition(":")
        stored_key, _, server_key = keys.partition(":")
        if method != METHOD or not iterations.isascii() or not iterations.isdigit():
            raise ValueError(f"not {METHOD}$iterations:salt$StoredKey:ServerKey")
        made = cls(int(iterations), _decoded(salt), _decoded(stored_key), _decoded(server_key))
        check_iterations(made.iterations)
        if not made.salt or len(made.stored_key) != KEY_BYTES or len(made.server_key) != KEY_BYTES:
            raise ValueError("no salt, or keys of another length than SHA-256's")
        return made


def check_iterations(iterations: int) -> None:
    """Raise ValueError unless the number is one that RFC 7677 allows and a client can work off."""
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {iterations}")


def derive_keys(password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramKeys:
    """What to store of a password: RFC 5802, section 3. Blocks for a while. Raises ValueError."""
    check_iterations(iterations)
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    client_key = _hmac(salted, b"Client Key")
    return ScramKeys(iterations, salt, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key"))


def keys_of_nobody(user: str, secret: bytes, iterations: int) -> ScramKeys:
    """For a user who is not there: always the same salt, so that asking twice tells nothing; no password fits."""
    name = user.encode()
    salt = _hmac(secret, b"salt\0" + name)[:SALT_BYTES]
    return ScramKeys(iterations, salt, _hmac(secret, b"stored\0" + name), _hmac(secret, b"server\0" + name))


class ScramExchange:
    """One authentication: `first`, then `final`, once each.

    `find` gives the keys of a prepared user name, of somebody or of nobody; `nonce` is the server's part, fresh and
    unpredictable.
    """

    __slots__ = ("_bare", "_find", "_gs2_header", "_keys", "_nonce", "_server_first", "user")

    def __init__(self, find: Callable[[str], ScramKeys], nonce: str) -> None:
        assert _PRINTABLE.fullmatch(nonce), "a nonce is printable"
        self._find = find
        self._nonce = nonce
        self._gs2_header = self._bare = self._server_first = self.user = ""
        self._keys: ScramKeys | None = None

    def first(self, message: bytes) -> bytes:
        """client-first -> server-first. Raises ScramError."""
        assert self._keys is None, "first comes once"
        text = _text(message)
        flag, comma, rest = text.partition(",")
        authorization, comma_2, bare = rest.partition(",")
        if not comma or not comma_2:
            raise ScramError("client-first has no GS2 header")
        if flag not in ("n", "y"):
            raise ScramError("channel binding is not offered" if flag.startswith("p=") else "an unknown GS2 flag")
        attributes = bare.split(",")
        if len(attributes) < 2 or not attributes[0].startswith("n=") or not attributes[1].startswith("r="):
            raise ScramError("client-first names no user and nonce, or asks for an extension")  # m= among them
        self.user = _user_name(attributes[0][2:])
        if authorization and (not authorization.startswith("a=") or _user_name(authorization[2:]) != self.user):
            raise ScramError("nobody acts for another user")
        client_nonce = attributes[1][2:]
        if not _PRINTABLE.fullmatch(client_nonce):
            raise ScramError("a nonce that is empty or not printable")
        keys = self._keys = self._find(self.user)
        self._nonce = client_nonce + self._nonce
        self._gs2_header, self._bare = f"{flag},{authorization},", bare
        self._server_first = f"r={self._nonce},s={_encoded(keys.salt)},i={keys.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """client-final -> server-final: `user` has proved to know the password. Raises ScramError."""
        keys, self._keys = self._keys, None
        assert keys is not None, "final comes once, after first"
        without_proof, found, proof = _text(message).rpartition(",p=")
        attributes = without_proof.split(",")
        if not found or len(attributes) < 2:
            raise ScramError("client-final has no proof")
        if attributes[0] != "c=" + _encoded(self._gs2_header.encode()):
            raise ScramError("client-final repeats another GS2 header")
        if attributes[1] != "r=" + self._nonce:
            raise ScramError("client-final repeats another nonce")
        message_of_both = f"{self._bare},{self._server_first},{without_proof}".encode()
        signature = _hmac(keys.stored_key, message_of_both)
        try:
            client_key = _xor(_decoded(proof), signature)
        except ValueError:
            raise ScramError("a proof that is none") from None
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), keys.stored_key):
            raise ScramError("the proof is wrong")
        return b"v=" + base64.b64encode(_hmac(keys.server_key, message_of_both))


def saslprep(text: str, *, is_query: bool = False) -> str:
    """RFC 4013: what looks the same is the same. A query may hold characters that Unicode 3.2 did not know.

    Raises ValueError for text that is prohibited, or empty afterwards.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared:
        raise ValueError("empty")
    if any(prohibited(character) for prohibited in _PROHIBITED for character in prepared):
        raise ValueError("control characters, or others that RFC 4013 prohibits")
    if not is_query and any(stringprep.in_table_a1(character) for character in prepared):
        raise ValueError("characters that Unicode 3.2 does not know (RFC 4013)")
    right_to_left = [stringprep.in_table_d1(character) for character in prepared]
    if any(right_to_left) and (
        any(stringprep.in_table_d2(character) for character in prepared) or not (right_to_left[0] and right_to_left[-1])
    ):
        raise ValueError("right-to-left and left-to-right characters mixed (RFC 3454, section 6)")
    return prepared


_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def _user_name(saslname: str) -> str:
    """`=2C` is a comma, `=3D` an equals sign, and no other `=` is allowed."""
    if any(match == "" for match in _SASLNAME_ESCAPES.findall(saslname)):
        raise ScramError("a user name with a bare '='")
    try:
        return saslprep(saslname.replace("=2C", ",").replace("=3D", "="), is_query=True)
    except ValueError as error:
        raise ScramError(f"user name: {error}") from None


def _text(message: bytes) -> str:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramError("not UTF-8") from None
    if "\0" in text:
        raise ScramError("NUL in a message")
    return text


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64") from None
