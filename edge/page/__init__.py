"""The live page: static files that an edge serves at ``/``. Plain HTML, CSS and ES modules; nothing from elsewhere.

Made for a strict Content-Security-Policy: no inline script or style. It speaks MQTT 5.0 over WebSocket (``/mqtt`` of
the host that served it) with its own small client.
"""

from pathlib import Path
from typing import Final

PAGE_DIR: Final = Path(__file__).parent / "static"

CONTENT_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_FILES: Final = {
    "/" + path.name: (path, CONTENT_TYPES[path.suffix])
    for path in sorted(PAGE_DIR.iterdir())
    if path.suffix in CONTENT_TYPES
}
_PAGE: Final = {"/": _FILES["/index.html"], **_FILES}


def page_files() -> dict[str, tuple[Path, str]]:
    """URL path -> file and Content-Type; ``/`` is the page itself."""
    return dict(_PAGE)
