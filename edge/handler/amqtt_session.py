"""amqtt's `Session` for an accepted client, light: for plug-ins and extensions that read it."""

from edge.access.amqtt_plugins import LightSession
from edge.access.principal import Principal
from edge.wire import Connect


class EdgeSession(LightSession):
    """What amqtt's plug-ins know of a client: identity, address, keep alive. The flows live in the session engine."""

    state_shown = "connected"

    def __init__(self, connect: Connect, principal: Principal) -> None:
        super().__init__()
        self.client_id = principal.client_id
        self.username = connect.user_name
        self.clean_session = connect.clean_start
        self.keep_alive = connect.keep_alive_s
        self.remote_address = principal.peer
