"""The server of `tests/e2e/test_listen_streams.py` in several processes."""

from test_listen_streams import make

from support.remote import remote_controlled

server = remote_controlled(make())
