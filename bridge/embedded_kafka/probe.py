"""Is a Kafka broker serving at this address? One metadata request over a plain socket, without a client library."""

from __future__ import annotations

import socket
import struct

_METADATA_API_KEY = 3
_METADATA_VERSION = 1  # the oldest with a controller id; every Kafka since 0.10 answers it
_HEADER = struct.Struct(">ihhih")  # size, api key, version, correlation id, length of the client id
_ANSWER_BYTES_MAX = 1 << 20  # no topics are asked for, so a real answer has some hundred bytes


def answers_metadata(host: str, port: int, timeout_s: float) -> bool:
    """Whether a broker is registered in the cluster's metadata and not fenced: from then on clients are served."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(_metadata_request())
            (size,) = struct.unpack(">i", _read_exactly(connection, 4))
            if not 0 < size <= _ANSWER_BYTES_MAX:
                return False
            return _broker_count(_read_exactly(connection, size)) > 0
    except (OSError, struct.error):
        return False


def _metadata_request() -> bytes:
    client_id = b"headwater-probe"
    body = client_id + struct.pack(">i", 0)  # an empty list of topics
    size = _HEADER.size - 4 + len(body)
    return _HEADER.pack(size, _METADATA_API_KEY, _METADATA_VERSION, 1, len(client_id)) + body


def _broker_count(answer: bytes) -> int:
    (count,) = struct.unpack_from(">i", answer, 4)  # after the correlation id
    return int(count)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            raise ConnectionError("closed before the answer was whole")
        data += part
    return bytes(data)
