"""How long a document that was fetched may be used again, by the headers that it came with."""

import pytest

from weft.net.fetch import fresh_seconds

DATE = "Sun, 15 Nov 2026 12:00:00 GMT"


@pytest.mark.spec("CREG-06")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 300),
        ({"Cache-Control": "public"}, 300),
        ({"Cache-Control": "max-age=60"}, 60),
        ({"Cache-Control": 'Public, Max-Age="60"'}, 60),
        ({"Cache-Control": "max-age=60", "Age": "45"}, 15),
        ({"Cache-Control": "max-age=60", "Age": "61"}, 0),
        ({"Cache-Control": "max-age=60, s-maxage=10"}, 10),
        ({"Cache-Control": "max-age=0"}, 0),
        ({"Cache-Control": "max-age=60, no-store"}, 0),
        ({"Cache-Control": "no-cache"}, 0),
        ({"Cache-Control": "private, max-age=60"}, 0),
        ({"Cache-Control": "max-age=999999999"}, 3600),
        ({"Cache-Control": f"max-age={'9' * 400}"}, 3600),
        ({"Cache-Control": f"max-age={'9' * 5000}"}, 0),
        ({"Cache-Control": "max-age=soon"}, 0),
        ({"Cache-Control": "max-age=-5"}, 0),
        ({"Cache-Control": "max-age=60", "Age": "old"}, 0),
        ({"Date": DATE, "Expires": "Sun, 15 Nov 2026 12:01:00 GMT"}, 60),
        ({"Date": DATE, "Expires": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0),
        ({"Date": DATE, "Expires": "0"}, 0),
        ({"Expires": "Sun, 15 Nov 2026 12:01:00 GMT"}, 0),
        ({"Date": DATE, "Expires": "Sun, 15 Nov 2026 12:01:00 GMT", "Cache-Control": "max-age=7"}, 7),
    ],
)
def test_what_the_headers_say(headers: dict[str, str], seconds: float) -> None:
    assert fresh_seconds(headers, default=300, most=3600) == seconds
