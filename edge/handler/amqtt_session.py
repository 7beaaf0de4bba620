"""amqtt's `Session` for an accepted client, light: for plug-ins and extensions that read it."""

from typing import Any

from amqtt.session import Session

from edge.access.principal import Principal
from edge.wire import Connect


class _ConnectedState:
    """Stands in for the `transitions.Machine` that amqtt builds for each session."""

    state = "connected"

    def connect(self) -> bool:
        return True

    def disconnect(self) -> bool:
        return True


class EdgeSession(Session):  # type: ignore[misc]
    """What amqtt's plug-ins know of a client: identity, address, keep alive. The flows live in the session engine."""

    def __init__(self, connect: Connect, principal: Principal) -> None:
        super().__init__()
        self.client_id = principal.client_id
        self.username = connect.user_name
        self.clean_session = connect.clean_start
        self.keep_alive = connect.keep_alive_s
        self.remote_address = principal.peer

    def _init_states(self) -> None:
        self.transitions: Any = _ConnectedState()
