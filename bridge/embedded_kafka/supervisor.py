"""Stands between Headwater and the JVM, so that the JVM never outlives the process that started it.

Run as a script with the standard library only: `python -I -S supervisor.py <grace in s> <command> ...`. Its standard
input is a pipe whose other end only the parent holds: end of file means "stop", be it that the parent asked for it or
that it was killed with SIGKILL. A parent that handed the pipe on to a fork of itself is noticed by the change of our
parent's process id. Should this process itself be killed, Linux kills the JVM (PR_SET_PDEATHSIG).

Standard output gets one line, the JVM's process id. The exit code is the JVM's.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys

LOOK_S = 0.25  # how late the end of the JVM or of a forked parent is noticed at worst
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the command until it ends, standard input closes or the parent is gone."""
    grace_s, command = float(arguments[0]), arguments[1:]
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None

    def die_with_supervisor() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # Only the pipe stops us: the parent decides the order. Not SIG_IGN, which the JVM would inherit and obey.
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=die_with_supervisor)
    os.write(1, b"%d\n" % child.pid)
    os.close(1)
    while child.poll() is None and os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], LOOK_S)
        if readable and not os.read(0, 512):
            break
    return _end(child, grace_s)


def _end(child: subprocess.Popen[bytes], grace_s: float) -> int:
    """SIGTERM, then SIGKILL once the grace is over."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) & 0xFF)
