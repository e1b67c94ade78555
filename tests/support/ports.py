"""Ports for servers of other processes: found free here, given to nobody else, and waited for."""

import random
import socket
import subprocess
import time

__all__ = ["find_port", "until_listening"]

# Below those that the system hands out by itself: a connection of some other test could take such a port in between.
_RANGE = range(10_000, 32_000)
_PATIENCE = 90.0  # seconds: programs are slow to start from a cold disk
_given: set[int] = set()


def find_port() -> int:
    """A port at which nothing listens, and which this process has not given out before."""
    while True:
        port = random.choice(_RANGE)  # not one after another: other workers of the same run look here too
        with socket.socket() as probe:
            if port not in _given and probe.connect_ex(("127.0.0.1", port)) != 0:
                _given.add(port)
                return port


def until_listening(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Wait until something listens at a port; until its process has ended, at most."""
    end = time.monotonic() + _PATIENCE
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < end, f"nothing listens at port {port}"
        time.sleep(0.02)
