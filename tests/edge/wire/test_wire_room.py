"""The room's own rules: pure, whole tables, and errors that say what they must."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields

import pytest

from edge import wire
from edge.wire import ProtocolViolation, ReasonCode
from edge.wire.properties import PROPERTIES, WILL, Properties

IMPURE = {"asyncio", "socket", "random", "threading", "amqtt", "aiokafka"}


def test_wire_imports_no_io() -> None:
    code = "import sys, edge.wire; print(' '.join(name for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not IMPURE & set(loaded)


def test_the_27_properties_are_there() -> None:
    assert len(PROPERTIES) == 27
    assert {spec.name for spec in PROPERTIES} == {field.name for field in fields(Properties)}
    in_a_will = {spec.identifier for spec in PROPERTIES if spec.places >> WILL & 1}
    assert in_a_will == {0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26}


def test_the_reason_codes_are_the_standards() -> None:
    values = {int(code) for code in ReasonCode}
    assert values == {0, 1, 2, 4, 0x10, 0x11, 0x18, 0x19} | set(range(0x80, 0xA3))


@pytest.mark.parametrize("error_class", ProtocolViolation.__subclasses__())
def test_violations_say_their_code_and_clause(error_class: type[ProtocolViolation]) -> None:
    error = error_class("what happened", "MQTT5-1.5.5-1", 5)
    assert str(error) == "what happened [MQTT5-1.5.5-1]"
    assert error.reason_code.is_error
    assert pickle.loads(pickle.dumps(error)).clause == error.clause


def test_everything_public_is_exported() -> None:
    assert all(hasattr(wire, name) for name in wire.__all__)


def test_a_password_is_not_printed() -> None:
    assert "secret" not in repr(wire.Connect(4, "a", password=b"secret"))
