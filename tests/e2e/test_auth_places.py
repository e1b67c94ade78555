"""A protected server in its places: behind a proxy, beside its authorization server, with the oldest transport."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from support import encode, serve
from support.logging_in import REDIRECT, Browser, log_in, pkce
from support.protected import Peer, challenge_of, make_protected, protect
from support.sessions import introduction, rpc
from support.tokens import ISSUER, bound_to, proof_for, rsa_jwk, token_for
from weft import Extension
from weft.authorization import AuthorizationServer
from weft.server.auth import JwtVerifier, ResourceServer

WELL_KNOWN = "/.well-known/oauth-protected-resource"
PUBLIC = "https://mcp.example.com/tools/mcp"


@pytest.mark.spec("ASD-02", "L06-07")
@pytest.mark.security("R14")
def test_behind_a_proxy_that_takes_a_prefix_off() -> None:
    """What clients are told is what they see, whatever the proxy, or the client, says of it."""
    verifier = JwtVerifier(keys=[rsa_jwk()], issuer=ISSUER)
    server = make_protected(ResourceServer(PUBLIC, authorization_servers=[ISSUER], verifier=verifier))
    lies = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "http", "Forwarded": "host=evil.example"}
    with serve(server, trusted_proxies=["127.0.0.1"]) as live:
        asked = live.call("tools/list", headers=lies)
        assert challenge_of(asked)[1]["resource_metadata"] == f"https://mcp.example.com{WELL_KNOWN}/tools/mcp"
        found = live.send(b"", list(lies.items()), verb="GET", path=f"{WELL_KNOWN}/tools/mcp")
        assert json.loads(found.body)["resource"] == PUBLIC
        token = token_for(aud=PUBLIC, cnf=bound_to())
        for url, status in [(PUBLIC, 200), ("https://mcp.example.com/mcp", 200), ("https://evil.example/mcp", 401)]:
            proof = {"Authorization": f"DPoP {token}", "DPoP": proof_for(token, url=url)}
            assert live.call("tools/list", headers={**lies, **proof}).status == status


@pytest.mark.security("R2", "D15")
def test_the_host_of_the_resource_is_served_without_being_named_again() -> None:
    verifier = JwtVerifier(keys=[rsa_jwk()], issuer=ISSUER)
    server = make_protected(ResourceServer(PUBLIC, authorization_servers=[ISSUER], verifier=verifier))
    token = {"Authorization": f"Bearer {token_for(aud=PUBLIC)}"}
    asked = {"Host": "mcp.example.com", "Origin": "https://mcp.example.com"}
    with serve(server) as live:
        for host in ("mcp.example.com", "mcp.example.com:8443", "MCP.example.com", f"127.0.0.1:{live.port}"):
            assert live.call("tools/list", headers={**token, "Host": host}).status == 200
        for host in ("evil.example", "mcp.example.com.evil.example", "example.com", "x.mcp.example.com"):
            assert live.call("tools/list", headers={**token, "Host": host}).status == 421
        assert live.call("tools/list", headers={**token, **asked}).status == 200
        assert live.call("tools/list", headers={**token, **asked, "Origin": "https://evil.example"}).status == 403
    with serve(server, allowed_hosts=["other.example"]) as live:  # whoever names hosts names all of them
        assert live.call("tools/list", headers={**token, "Host": "mcp.example.com"}).status == 421
        assert live.call("tools/list", headers={**token, "Host": "other.example"}).status == 200


@pytest.mark.spec("XAUTH-01")
def test_a_program_that_logs_in_by_itself_is_served_and_may_be_told_that_it_can() -> None:
    class ClientCredentials(Extension):
        id = "io.modelcontextprotocol/oauth-client-credentials"

    with serve(make_protected(extensions=[ClientCredentials()])) as live:
        robot = Peer(live, "stateless", token_for("robot", client_id="robot"))
        declared = robot.send("server/discover").result["capabilities"]["extensions"]
        assert ClientCredentials.id in declared
        told = robot.tool("who").result["structuredContent"]
        assert (told["subject"], told["client"]) == ("robot", "robot")


@pytest.mark.spec("L03-07", "AUTH-03")
def test_beside_its_authorization_server() -> None:
    """At the root of the server's own origin, where the clients of one revision look for it."""
    apps: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # the address is known once it runs
        if scope["type"] == "http":
            await apps[0](scope, receive, send)

    with serve(app) as live:
        issuer = f"http://127.0.0.1:{live.port}"
        resource = f"{issuer}/mcp"
        authorization = AuthorizationServer(
            issuer, resources=[resource], users={"ann": "correct horse"}, scopes=["read"], registration=True
        )
        auth = ResourceServer(resource, authorization_servers=[issuer], verifier=authorization.verifier())
        endpoint = make_protected(auth).asgi()
        routes = [Route(place, endpoint) for place in ("/mcp", WELL_KNOWN, f"{WELL_KNOWN}/mcp")]
        apps.append(Starlette(routes=[*routes, Mount("/", authorization.asgi())]))
        browser = Browser(issuer)
        assert json.loads(browser.get("/.well-known/oauth-authorization-server").body)["issuer"] == issuer
        metadata = json.dumps({"redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none"})
        told = browser.send("POST", "/register", metadata, {"Content-Type": "application/json"})
        client_id = json.loads(told.body)["client_id"]
        verifier, challenge = pkce()
        request = {"response_type": "code", "client_id": client_id, "code_challenge_method": "S256"}
        code = log_in(browser, **request, code_challenge=challenge)["code"]
        fields = {"grant_type": "authorization_code", "client_id": client_id, "code": code, "code_verifier": verifier}
        tokens = json.loads(browser.post("/token", fields).body)
        assert Peer(live, "session", tokens["access_token"]).tool("who").status == 200


@pytest.mark.security("R4", "R5", "R13")
def test_the_oldest_transport_is_protected_too() -> None:
    with serve(make_protected(protect()), sse_path="/sse") as live:
        ann, bob = ([("Authorization", f"Bearer {token_for(name)}")] for name in ("ann", "bob"))
        connection = live.connect()
        connection.request("GET", "/sse", headers={**dict(ann), "Accept": "text/event-stream"})
        stream = connection.getresponse()
        assert stream.status == 200
        while not (line := stream.readline()).startswith(b"data:"):
            assert line
        place = line[5:].strip().decode()
        body = encode(rpc("initialize", introduction("2024-11-05")))
        kind = [("Content-Type", "application/json")]
        unknown = live.send(body, [*kind, *bob], path="/messages?" + urlencode({"session_id": "sse-x"}))
        for headers, status in [(kind, 401), ([*kind, *bob], 404), ([*kind, *ann], 202)]:
            response = live.send(body, headers, path=place)
            assert response.status == status
            if status == 404:
                assert response.body == unknown.body
        connection.close()
