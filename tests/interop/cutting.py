"""A way to a server that breaks once: whoever was cut off comes back, and how they ask is remembered."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Cut:
    """What happened on the way."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.happened = False
        self.asked = bytearray()  # all that clients sent

    @property
    def last_event_ids(self) -> list[str]:
        """What clients that came back had heard last."""
        return [found.decode() for found in re.findall(rb"(?im)^last-event-id: *([^\r\n]+)", bytes(self.asked))]


@contextmanager
def cutting(port: int, word: bytes) -> Iterator[Cut]:
    """Listens before a server at `port`; the first connection on which the server says `word` is cut off after it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cut = Cut(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")

        def accept() -> None:
            with contextlib.suppress(OSError):  # the listener was closed: the end
                while True:
                    client, _ = listener.accept()
                    server = socket.create_connection(("127.0.0.1", port))
                    threading.Thread(target=ask, args=(client, server), daemon=True).start()
                    threading.Thread(target=answer, args=(server, client), daemon=True).start()

        def ask(client: socket.socket, server: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := client.recv(65536):
                    cut.asked += data
                    server.sendall(data)
            hang_up(client, server)

        def answer(server: socket.socket, client: socket.socket) -> None:
            seen = b""
            with contextlib.suppress(OSError):
                while data := server.recv(65536):
                    client.sendall(data)
                    seen = seen[-len(word) :] + data
                    if word in seen and not cut.happened:
                        cut.happened = True
                        break
            hang_up(client, server)

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield cut
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
