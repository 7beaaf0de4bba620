"""`%c` and `%u` in configured filters and names: the client id and the user name of a session."""

import re
from typing import Final

from edge.access.principal import Principal, has_control_characters

_PLACEHOLDER: Final = re.compile("%[cu]")


def substitute(text: str, principal: Principal) -> str | None:
    """The text for this client; None when a value that is needed would not fit into one level of a Topic Name.

    One pass: a client id that reads `%u` stays as it is.
    """
    used = set(_PLACEHOLDER.findall(text))
    if not used:
        return text
    values = {"%c": principal.client_id, "%u": principal.name}
    if any(not _is_usable(values[each]) for each in used):
        return None
    return _PLACEHOLDER.sub(lambda found: values[found.group()], text)


def _is_usable(value: str) -> bool:
    if not value or value.startswith("$") or has_control_characters(value):
        return False
    return not any(character in value for character in "+#/")
