"""What the figures were measured on: nothing that names the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bridge.embedded_kafka import JavaNotFound
from bridge.embedded_kafka.jars import KAFKA_VERSION
from bridge.embedded_kafka.java import find_java


def describe_machine() -> dict[str, str]:
    """Label and value, in the order in which they are shown."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _first("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": f"{_memory_gib():.0f} GiB",
        "system": f"{_first('/etc/os-release', 'PRETTY_NAME').strip(chr(34)) or platform.system()}",
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "uvloop": _version("uvloop"),
        "aiokafka": _version("aiokafka"),
        "kafka": f"{KAFKA_VERSION}, embedded, one node",
        "java": _java(),
    }


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


def _java() -> str:
    try:
        return str(find_java().version)
    except JavaNotFound:
        return "none"


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _first(path: str, key: str) -> str:
    """The value of the first line `key : value` or `key=value`."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        if line.startswith(key):
            return line.replace("=", ":", 1).partition(":")[2].strip()
    return ""
