"""JSON Web Tokens on the wire: a connection by one, and its end when the token ends."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from support.edges import memory_edge, mqtt_address
from support.wire_client import dial

from edge.wire import Disconnect, ReasonCode

KEY = ec.generate_private_key(ec.SECP256R1())


async def test_a_connection_ends_with_its_token(tmp_path: Path) -> None:
    jwk: dict[str, Any] = ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "k", "alg": "ES256"}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [jwk]}))
    claims = {"sub": "pump", "iss": "https://id.example", "aud": "headwater", "exp": int(time.time()) + 3}
    token = jwt.encode(claims, KEY, "ES256", {"kid": "k"}).encode()
    names = {"jwks_file": str(tmp_path / "jwks.json"), "issuer": "https://id.example", "audience": "headwater"}
    async with (
        memory_edge(dev=False, authentication={"jwt": names}) as node,
        dial(mqtt_address(node)) as client,
        dial(mqtt_address(node)) as other,
    ):
        refused = await other.connect("other", user_name="pump", password=token[:-4])
        assert refused.reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert (await client.connect("c", user_name="ignored", password=token)).reason_code is ReasonCode.SUCCESS
        principal = node.services.clients["c"].principal
        assert principal is not None
        assert principal.name == "pump"
        [packet] = await client.until_closed()
        assert isinstance(packet, Disconnect)
        assert packet.reason_code is ReasonCode.NOT_AUTHORIZED
        assert claims["exp"] - 0.1 <= time.time() < claims["exp"] + 5  # type: ignore[operator]
