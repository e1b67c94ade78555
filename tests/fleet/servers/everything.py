"""The server of `support.everything` in several processes."""

from support.everything import make_server
from support.remote import remote_controlled, shared_notes
from weft import Limits

server = remote_controlled(make_server(notes=shared_notes(), limits=Limits(progress_per_second=0)))
