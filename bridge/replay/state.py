"""How far a replay has come, in a file that is replaced as a whole: an interruption leaves the old one or the new."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bridge.log import Position
from schemas.errors import ConfigurationError
from schemas.replay_range import ReplayRangeError, parse_position_token, position_token

_VERSION = 1


@dataclass(slots=True)
class ReplayState:
    """``asked`` is what the command line said, so that another one does not go on with this; ``ends`` and ``positions``
    are position tokens; ``sink`` is the writer's last checkpoint."""

    asked: dict[str, Any]
    starts: str
    ends: str
    positions: str
    records: int = 0
    bytes: int = 0
    first_ms: int | None = None
    partitions: dict[str, Any] = field(default_factory=dict)
    sink: dict[str, Any] = field(default_factory=dict)
    is_done: bool = False
    version: int = _VERSION

    def bounds(self) -> dict[Position, tuple[int, int]]:
        """What is left, per partition."""
        at, ends = parse_position_token(self.positions).positions, parse_position_token(self.ends).positions
        return {position: (at[position], end) for position, end in ends.items()}

    def whole(self) -> dict[Position, tuple[int, int]]:
        """What the run began with, per partition."""
        starts, ends = parse_position_token(self.starts).positions, parse_position_token(self.ends).positions
        return {position: (starts[position], end) for position, end in ends.items()}

    def save(self, path: Path) -> None:
        """Raises ConfigurationError when the file cannot be written."""
        beside = path.with_name(path.name + ".new")
        try:
            with beside.open("wb") as file:
                file.write(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except OSError as error:
            raise ConfigurationError(f"--state {path}: {error.strerror}") from None


def new_state(asked: dict[str, Any], bounds: dict[Position, tuple[int, int]]) -> ReplayState:
    """A run that has not begun."""
    starts = position_token({position: first for position, (first, _) in bounds.items()})
    return ReplayState(asked, starts, position_token({position: end for position, (_, end) in bounds.items()}), starts)


def load_state(path: Path, asked: dict[str, Any]) -> ReplayState:
    """What an earlier run has saved. Raises ConfigurationError: there is none, it is damaged, or of another command."""
    try:
        values = orjson.loads(path.read_bytes())
        state = ReplayState(**values)
        state.whole()
    except FileNotFoundError:
        raise ConfigurationError(f"--state {path}: there is no such file; start without --resume") from None
    except OSError as error:
        raise ConfigurationError(f"--state {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, ReplayRangeError):
        raise ConfigurationError(f"--state {path}: no state of a replay; start anew without --resume") from None
    if state.version != _VERSION:
        raise ConfigurationError(f"--state {path}: version {state.version} is not known to this Headwater")
    for name, value in state.asked.items():
        if asked.get(name) != value:
            raise ConfigurationError(
                f"--state {path} is of a replay with {name} {value!r}, not {asked.get(name)!r}; "
                "resume with the same, or start anew with another --state"
            )
    return state
