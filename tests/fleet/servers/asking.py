"""The server of `tests/e2e/test_questions.py` in several processes."""

from test_questions import make_asking

from support.remote import remote_controlled

server = remote_controlled(make_asking())
