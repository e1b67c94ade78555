"""The server of `tests/e2e/test_both_eras.py` in several processes."""

from test_both_eras import make_server

from support.remote import remote_controlled, shared_notes
from weft import Limits

# The sessions of all tests are of one address.
server = remote_controlled(make_server(shared_notes(), limits=Limits(sessions_per_peer=1000)))
