"""How many devices the operating system lets us have: each is a file descriptor here, and one in its edge."""

from __future__ import annotations

import resource

SPARE_FILES = 512  # Kafka's connections, the observers, logs, what Python itself has open
FILES_PER_DEVICE = 2  # its client's end and its edge's end may be in one process


def devices_that_fit(files_max: int, devices: int) -> int:
    """How many of ``devices`` fit under a limit of open files."""
    return max(0, min(devices, (files_max - SPARE_FILES) // FILES_PER_DEVICE))


def raise_file_limit(devices: int) -> int:
    """Raise the soft limit as far as ``devices`` need and the hard limit allows; child processes inherit it.

    Returns the limit that holds now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = devices * FILES_PER_DEVICE + SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
