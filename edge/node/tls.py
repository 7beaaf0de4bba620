"""TLS for listeners: a context from files, made anew when they change.

A changed file makes a whole new `ssl.SSLContext`, used from the next connection on. Loading into the context in use
would do for a certificate, but not for authorities: one that is taken out would stay, and a session ticket given before
would let its holder in without being looked at again.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from edge.access.watching import RELOAD_S, Fingerprint, Watcher, file_fingerprint
from edge.node.config import TlsConfig
from schemas.errors import ConfigurationError

ALPN_MQTT: Final = ("mqtt",)  # RFC 7301's registry; a client that offers another protocol, or none, is served as well
ALPN_HTTP: Final = ("http/1.1",)


def tls_context(config: TlsConfig, alpn: tuple[str, ...] = ALPN_MQTT) -> ssl.SSLContext:
    """A server context of TLS 1.2 or later; with `client_ca`, clients must present a certificate.

    Raises ConfigurationError when a file cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(alpn))
    try:
        context.load_cert_chain(config.certificate, config.key)
        if config.client_ca is not None:
            context.load_verify_locations(config.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"TLS: {config.certificate}, {config.key}: {error}") from None
    return context


class ServerTls:
    """The context for the next connection. Files that cannot be read later on change nothing and are logged once.

    Making one raises ConfigurationError when a file cannot be read.
    """

    def __init__(self, config: TlsConfig, alpn: tuple[str, ...] = ALPN_MQTT) -> None:
        self._config = config
        self._alpn = alpn
        self._files = [path for path in (config.certificate, config.key, config.client_ca) if path is not None]
        self._seen = self._fingerprints()
        self.context = tls_context(config, alpn)
        self.reloads = 0
        self._watcher = Watcher(f"TLS: {config.certificate}", self.reload_if_changed, RELOAD_S)

    def watch(self) -> None:
        """Look at the files every second from now on."""
        self._watcher.start()

    def close(self) -> None:
        """Stop looking."""
        self._watcher.cancel()

    async def reload_if_changed(self) -> bool:
        """Take over changed files; False when they are as they were. Raises ConfigurationError."""
        seen = self._fingerprints()
        if seen == self._seen:
            return False
        self.context = await asyncio.to_thread(tls_context, self._config, self._alpn)
        self._seen = seen
        self.reloads += 1
        return True

    def _fingerprints(self) -> list[Fingerprint | None]:
        return [file_fingerprint(path) for path in self._files]
