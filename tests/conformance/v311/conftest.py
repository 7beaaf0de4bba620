"""The suite for MQTT 3.1.1: clients speak protocol level 4."""

import pytest


@pytest.fixture
def protocol_version() -> int:
    return 4
