"""The hotel of `support.hotel` in several processes."""

from support.hotel import make_hotel
from support.remote import remote_controlled, shared_notes

server = remote_controlled(make_hotel(notes=shared_notes()))
