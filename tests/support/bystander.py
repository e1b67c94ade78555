"""Another caller while a server is attacked: asks at a steady pace, and says how long it waited.

A program, run by support/attacks.py in a process of its own: `bystander.py PORT`. The request to send comes on stdin,
its length in the first line. A line after that asks for the figures since the last such line, as JSON on stdout.

The pace is kept whatever the server does: a wait is counted from when a request was due, not from when it was sent.
One long stall is then many long waits, as it is for a server's many callers.
"""

import json
import math
import select
import socket
import sys
import time

PACE = 0.01  # seconds between two requests
PATIENCE = 30.0


def quantile(values: list[float], share: float) -> float:
    """The smallest value that so many of them do not exceed."""
    return sorted(values)[max(math.ceil(len(values) * share) - 1, 0)] if values else 0.0


class Caller:
    def __init__(self, port: int, request: bytes) -> None:
        self._port = port
        self._request = request
        self._socket: socket.socket | None = None

    def ask(self) -> bool:
        """Send the request, and read its answer. Whether there was one."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), PATIENCE)
            self._socket.sendall(self._request)
            return self._read(self._socket)
        except OSError:
            self._socket = None
            return False

    def _read(self, connection: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            data += (chunk := connection.recv(65536))
            if not chunk:
                raise ConnectionError
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        left = int(fields[b"content-length"]) - len(body)
        while left > 0:
            left -= len(chunk := connection.recv(left))
            if not chunk:
                raise ConnectionError
        return head.split(b" ")[1] == b"200"


def main() -> None:
    commands = open(0, "rb", buffering=0)  # noqa: SIM115 - until the end; a buffer would hide lines from `select`
    length = int(commands.readline())
    request = b""
    while len(request) < length:
        request += commands.read(length - len(request)) or b""
    caller = Caller(int(sys.argv[1]), request)
    waits: list[float] = []
    late: list[float] = []  # how much later than wished this process was woken up: what the machine adds to any wait
    refused = 0
    due = time.perf_counter()
    while True:
        pause = max(due - time.perf_counter(), 0.0)
        asked, _, _ = select.select([commands], [], [], pause)
        if asked:
            if not commands.readline():
                return
            figures = {"asked": len(waits), "refused": refused, "p99": quantile(waits, 0.99)}
            print(json.dumps(figures | {"worst": max(waits, default=0.0), "late": quantile(late, 0.99)}), flush=True)
            waits, late, refused = [], [], 0
            continue
        if pause:
            late.append(max(time.perf_counter() - due, 0.0))
        refused += not caller.ask()
        waits.append(time.perf_counter() - due)
        due += PACE


if __name__ == "__main__":
    main()
