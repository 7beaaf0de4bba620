"""SCRAM-SHA-256, the client's side, written apart from the server's so that one checks the other."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """Says client-first and client-final, and checks server-final."""

    def __init__(self, user: str, password: str, nonce: str = "rOprNGfwEbeRWgbNEkqO", gs2: str = "n,,") -> None:
        self.gs2 = gs2
        self.password = password
        self.nonce = nonce
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"

    def first(self) -> bytes:
        return (self.gs2 + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) > len(self.nonce)
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        stored_key = hashlib.sha256(client_key).digest()
        unproved = f"c={base64.b64encode(self.gs2.encode()).decode()},r={fields['r']}"
        message = f"{self.bare},{server_first.decode()},{unproved}".encode()
        signature = hmac.digest(stored_key, message, "sha256")
        self.expected = b"v=" + base64.b64encode(
            hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
        )
        proof = (int.from_bytes(client_key, "big") ^ int.from_bytes(signature, "big")).to_bytes(32, "big")
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()
