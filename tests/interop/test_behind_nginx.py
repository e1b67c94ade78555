"""A protected server behind a real nginx: TLS ends there, the public name is another, the endpoint is below a path.

Nothing is configured but `resource=`, the URL that clients see.
"""

import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from processes import listening, skip_without

from support import Response, encode, headers_for, message
from support.logging_in import FORM, hidden_fields
from support.ports import find_port
from support.protected import challenge_of
from support.wire import finish
from weft import Client, Http
from weft.auth import OAuth
from weft.client.auth import FunctionRedirect

BEHIND = Path(__file__).parent / "servers" / "behind.py"
WELL_KNOWN = "/.well-known/oauth-protected-resource"
REDIRECT = "http://127.0.0.1:3994/callback"


@dataclass
class Front:
    """What clients see."""

    origin: str
    port: int
    tls: ssl.SSLContext
    is_mounted: bool

    def send(self, verb: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Response:
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=30, context=self.tls)
        try:
            connection.request(verb, path, body or None, headers or {})
            return finish(connection.getresponse())
        finally:
            connection.close()

    def call(self, method: str, **headers: str) -> Response:
        request = message(method)
        return self.send("POST", "/tools/mcp", encode(request), {**dict(headers_for(request)), **headers})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For localhost."""
    place = tmp_path_factory.mktemp("tls") / "both.pem"
    names = "subjectAltName=DNS:localhost"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here, which makes the certificate")
    made = [*command, "-addext", names, "-keyout", str(place), "-out", str(place.with_suffix(".crt"))]
    subprocess.run(made, check=True, capture_output=True)
    return place


@pytest.fixture(
    scope="module",
    params=["prefix taken off", "mounted below it"],
)
def front(
    request: pytest.FixtureRequest, certificate: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    skip_without("nginx", Path(nginx or "nginx"))
    folder = tmp_path_factory.mktemp("nginx")
    behind, port = find_port(), find_port()
    is_mounted = request.param == "mounted below it"
    settings = folder / "nginx.conf"
    settings.write_text(nginx_settings(folder, certificate, port, behind, is_mounted=is_mounted))
    tls = ssl.create_default_context(cafile=certificate.with_suffix(".crt"))
    origin = f"https://localhost:{port}"
    options = ["--mounted"] if is_mounted else []
    with (
        listening([sys.executable, str(BEHIND), str(behind), origin, *options], behind),
        listening([str(nginx), "-p", str(folder), "-c", str(settings)], port),
    ):
        yield Front(origin, port, tls, is_mounted)


def nginx_settings(folder: Path, certificate: Path, front: int, behind: int, *, is_mounted: bool) -> str:
    """Names the client's own Host, and says what it did, as most proxies are set up to."""
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    server = f"http://127.0.0.1:{behind}"
    tools = f"location /tools/ {{ proxy_pass {server}{'' if is_mounted else '/'}; }}"
    return f"""
        daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;
        events {{ worker_connections 256; }}
        http {{
            access_log off; client_body_temp_path {folder}/body; {places}
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Forwarded-Proto $scheme;
            server {{
                listen 127.0.0.1:{front} ssl;
                ssl_certificate {certificate.with_suffix(".crt")}; ssl_certificate_key {certificate};
                {tools}
                location /login/ {{ proxy_pass {server}; }}
                location /.well-known/ {{ proxy_pass {server}; }}
            }}
        }}
    """


@pytest.mark.spec("ASD-02", "L06-07")
def test_what_clients_are_told_leads_back_through_the_proxy(front: Front) -> None:
    asked = front.call("tools/list")
    assert asked.status == 401
    told = challenge_of(asked)[1]["resource_metadata"]
    assert told.startswith(f"{front.origin}/")
    found = front.send("GET", told.removeprefix(front.origin))
    assert found.status == 200
    assert json.loads(found.body)["resource"] == f"{front.origin}/tools/mcp"
    if not front.is_mounted:
        assert front.send("GET", f"{WELL_KNOWN}/tools/mcp").body == found.body


@pytest.mark.security("R2", "R14")
def test_hosts_and_origins_are_judged_by_what_the_client_said(front: Front) -> None:
    assert front.call("tools/list", Host="evil.example").status == 421
    assert front.call("tools/list", Origin="https://evil.example").status == 403
    assert front.call("tools/list", Origin=front.origin).status == 401
    lies = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "http", "Forwarded": "host=evil.example"}
    asked = front.call("tools/list", **lies)
    assert challenge_of(asked)[1]["resource_metadata"].startswith(f"{front.origin}/")


async def test_a_client_logs_in_through_the_proxy_and_comes_back_for_more(front: Front) -> None:
    logins: list[str] = []

    def log_in(url: str) -> str:
        logins.append(url)
        assert url.startswith(f"{front.origin}/login/authorize?")
        page = front.send("GET", url.removeprefix(front.origin))
        cookie = page.headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert "; Secure" in cookie
        fields = {**hidden_fields(page), "username": "ann", "password": "correct horse", "action": "allow"}
        headers = {"Content-Type": FORM, "Cookie": cookie.partition(";")[0], "Origin": front.origin}
        return front.send("POST", "/login/authorize", urlencode(fields).encode(), headers).headers["location"]

    # What is said of TLS to the client holds for its login as well.
    auth = OAuth(redirect=FunctionRedirect(log_in, REDIRECT))
    async with Client(Http(f"{front.origin}/tools/mcp", auth=auth, tls=front.tls)) as client:
        assert (await client.call_tool("who", {})).text == "ann"
        assert (await client.call_tool("erase", {})).text == "read write"
    assert len(logins) == 2
