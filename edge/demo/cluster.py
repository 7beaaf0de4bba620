"""What the demo needs of a running cluster: addresses. ``headwater up``'s code gives it; tests give a stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class EdgeLike(Protocol):
    """One edge that takes clients; addresses as host:port."""

    @property
    def node_id(self) -> str: ...

    @property
    def mqtt(self) -> str: ...

    @property
    def http(self) -> str: ...


class ClusterLike(Protocol):
    """Kafka and its edges, all of them ready."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def edges(self) -> Sequence[EdgeLike]: ...


def split_address(address: str) -> tuple[str, int]:
    """``127.0.0.1:1883`` as host and port; an IPv6 address stands in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
