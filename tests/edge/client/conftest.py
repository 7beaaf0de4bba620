"""mosquitto as a reference peer, one process for all tests here."""

from collections.abc import Iterator

import pytest
from support.mosquitto import Mosquitto, running_mosquitto


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with running_mosquitto(tmp_path_factory.mktemp("mosquitto")) as peer:
        yield peer
