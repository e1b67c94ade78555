"""Tokens that are bound to a client's key, over a socket, in both eras."""

import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from jwt.algorithms import ECAlgorithm

from support import Live, encode, headers_for, message, serve
from support.protected import ERAS, Peer, challenge_of, make_protected, protect
from support.tokens import METADATA, RESOURCE, bound_to, ec_jwk, ec_key, proof_for, rsa_jwk, rsa_key, token_for
from weft.backends.memory import MemoryBackend
from weft.errors import UsageError
from weft.server.auth import Dpop
from weft.server.auth import dpop as module
from weft.server.auth.bearer_auth import BearerAuth
from weft.server.auth.dpop import thumbprint
from weft.server.calls import shares


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serve(make_protected()) as running:
        yield running


def token(name: str = "first", **claims: Any) -> str:
    return token_for("ann", cnf=bound_to(name), **claims)


class Bound(Peer):
    """A client that makes a proof for each request, unless told otherwise."""

    def __init__(self, live: Live, era: str, token: str) -> None:
        self.token = token
        super().__init__(live, era, token, scheme="DPoP")

    def send(self, method: str, params: Any = None, headers: Any = None) -> Any:
        return super().send(method, params, {"DPoP": proof_for(self.token), **(headers or {})})


@pytest.mark.spec("AUTH-29")
@pytest.mark.parametrize("era", ERAS)
def test_a_token_with_its_proof(live: Live, era: str) -> None:
    peer = Bound(live, era, token())
    for _ in range(2):
        assert peer.tool("who").result["structuredContent"]["subject"] == "ann"


def confused(good: str) -> str:
    """A proof with the right key in its head, signed with another."""
    claims = jwt.decode(proof_for(good), options={"verify_signature": False})
    public = {name: value for name, value in ec_jwk().items() if name != "key_ops"}
    return jwt.encode(claims, ec_key("other"), "ES256", headers={"typ": "dpop+jwt", "jwk": public})


def with_private_key(good: str) -> str:
    """A proof that is good but for carrying the whole key."""
    whole = ECAlgorithm.to_jwk(ec_key("first"), as_dict=True)
    assert "d" in whole
    return proof_for(good, head={"jwk": {name: value for name, value in whole.items() if name != "key_ops"}})


def ago(seconds: float) -> int:
    return int(time.time() - seconds)


BAD: dict[str, tuple[Any, str]] = {
    "none": (lambda t: None, "invalid_dpop_proof"),
    "text": (lambda t: "x", "invalid_dpop_proof"),
    "two in one": (lambda t: f"{proof_for(t)}, {proof_for(t)}", "invalid_dpop_proof"),
    "long": (lambda t: proof_for(t, x="x" * 9000), "invalid_dpop_proof"),
    "method": (lambda t: proof_for(t, method="GET"), "invalid_dpop_proof"),
    "URL": (lambda t: proof_for(t, url="http://127.0.0.1:8000/other"), "invalid_dpop_proof"),
    "host": (lambda t: proof_for(t, url="https://evil.example/mcp"), "invalid_dpop_proof"),
    "broken URL": (lambda t: proof_for(t, url="http://[/mcp"), "invalid_dpop_proof"),
    "no URL": (lambda t: proof_for(t, htu=3), "invalid_dpop_proof"),
    "token": (lambda t: proof_for(token("first", x=1)), "invalid_dpop_proof"),
    "no token": (lambda t: proof_for(t, ath=None), "invalid_dpop_proof"),
    "old": (lambda t: proof_for(t, iat=ago(90)), "invalid_dpop_proof"),
    "early": (lambda t: proof_for(t, iat=ago(-90)), "invalid_dpop_proof"),
    "no time": (lambda t: proof_for(t, iat=None), "invalid_dpop_proof"),
    "never": (lambda t: proof_for(t, iat=float("nan")), "invalid_dpop_proof"),
    "beyond all times": (lambda t: proof_for(t, iat=10**400), "invalid_dpop_proof"),
    "half a character": (lambda t: proof_for(t, ath="\ud800"), "invalid_dpop_proof"),
    "no id": (lambda t: proof_for(t, jti=None), "invalid_dpop_proof"),
    "empty id": (lambda t: proof_for(t, jti=""), "invalid_dpop_proof"),
    "type": (lambda t: proof_for(t, head={"typ": "JWT"}), "invalid_dpop_proof"),
    "signature": (confused, "invalid_dpop_proof"),
    "private key": (with_private_key, "invalid_dpop_proof"),
    "other key": (lambda t: proof_for(t, key="other"), "invalid_token"),
}


@pytest.mark.spec("AUTH-31", "AUTH-34")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("make", "error"), BAD.values(), ids=BAD.keys())
def test_a_bad_proof(live: Live, era: str, make: Any, error: str) -> None:
    good = token()
    response = Bound(live, era, good).tool("who", {"DPoP": make(good)})
    assert response.status == 401
    scheme, told = challenge_of(response)
    assert (scheme, told["error"], told["algs"]) == ("DPoP", error, "ES256 EdDSA")
    assert told["resource_metadata"] == METADATA
    assert good not in response.body.decode()


def test_a_proof_with_another_algorithm_than_those_taken(live: Live) -> None:
    """All but the algorithm is right: the key is whole, made for it, the one of the token, and signed with."""
    public = {name: value for name, value in rsa_jwk().items() if name in ("kty", "n", "e")}
    bound = token_for("ann", cnf={"jkt": thumbprint(public)})
    claims = jwt.decode(proof_for(bound), options={"verify_signature": False})

    def proof() -> dict[str, str]:
        head = {"typ": "dpop+jwt", "jwk": public}
        return {"DPoP": jwt.encode({**claims, "jti": uuid.uuid4().hex}, rsa_key("first"), "RS256", headers=head)}

    with serve(make_protected(protect(dpop=Dpop(algorithms=["RS256"])))) as other:
        taken = Peer(other, "stateless", bound, scheme="DPoP").tool("who", proof())
    assert taken.status == 200
    refused = Peer(live, "stateless", bound, scheme="DPoP").tool("who", proof())
    assert (refused.status, challenge_of(refused)[1]["error"]) == (401, "invalid_dpop_proof")
    assert "signed with ES256 or EdDSA" in challenge_of(refused)[1]["error_description"]


@pytest.mark.parametrize("era", ERAS)
def test_a_proof_is_good_once(live: Live, era: str) -> None:
    good = token()
    proof = proof_for(good)
    peer = Bound(live, era, good)
    assert peer.tool("who", {"DPoP": proof}).status == 200
    again = peer.tool("who", {"DPoP": proof})
    assert (again.status, challenge_of(again)[1]["error"]) == (401, "invalid_dpop_proof")
    assert "used before" in challenge_of(again)[1]["error_description"]


def test_a_proof_is_remembered_for_as_long_as_it_could_come_again() -> None:
    """One that was made by a clock that is early is good for longer than a window."""
    with serve(make_protected(protect(dpop=Dpop(window=1)))) as live:
        good = token()
        proof = proof_for(good, iat=time.time() + 0.9)
        peer = Bound(live, "stateless", good)
        assert peer.tool("who", {"DPoP": proof}).status == 200
        time.sleep(1.2)
        again = peer.tool("who", {"DPoP": proof})
    assert (again.status, "used before" in challenge_of(again)[1]["error_description"]) == (401, True)


@pytest.mark.security("R14")
def test_two_proofs(live: Live) -> None:
    body, good = message("tools/list"), token()
    proofs = [("DPoP", proof_for(good)), ("DPoP", proof_for(good))]
    response = live.send(encode(body), [*headers_for(body, {"Authorization": f"DPoP {good}"}), *proofs])
    assert response.status == 401


@pytest.mark.parametrize("cnf", ["text", ["list"], {"jkt": 7}, {}])
def test_a_token_that_is_bound_to_what_cannot_be_read(live: Live, cnf: Any) -> None:
    bad = token_for("ann", cnf=cnf)
    response = Bound(live, "stateless", bad).tool("who")
    assert (response.status, challenge_of(response)[1]["error"]) == (401, "invalid_token")


@pytest.mark.security("R14")
async def test_no_header_stands_for_a_token_that_needs_a_proof() -> None:
    admission = BearerAuth(protect(), make_protected())
    asking = SimpleNamespace(is_dpop=True)
    await admission._verify(token(), asking)
    assert len(admission._known) == 1
    for head in (b"DPoP ", b"DPoP\0", b"Bearer ", b""):
        assert admission.recall(head + token().encode()) is None


@pytest.mark.parametrize("era", ERAS)
def test_a_bound_token_is_no_bearer_token(live: Live, era: str) -> None:
    good = token()
    peer = Bound(live, era, good)
    for headers in ({"DPoP": None}, {}):
        response = peer.tool("who", {"Authorization": f"Bearer {good}", **headers})
        assert (response.status, challenge_of(response)[1]["error"]) == (401, "invalid_token")


def test_a_bearer_token_is_no_bound_token(live: Live) -> None:
    plain = token_for()
    response = Peer(live, "stateless", plain, scheme="DPoP", more={"DPoP": proof_for(plain)}).tool("who")
    assert (response.status, challenge_of(response)[1]["error"]) == (401, "invalid_token")
    assert Peer(live, "stateless", plain).tool("who").status == 200


@pytest.mark.parametrize("url", [RESOURCE.upper().replace("/MCP", "/mcp"), RESOURCE + "?x=1#y"])
def test_a_url_is_the_same_however_it_is_spelled(live: Live, url: str) -> None:
    good = token()
    assert Bound(live, "stateless", good).tool("who", {"DPoP": proof_for(good, url=url)}).status == 200


def test_a_token_for_less_is_told_so_with_its_own_scheme(live: Live) -> None:
    response = Bound(live, "stateless", token()).tool("burn")
    scheme, told = challenge_of(response)
    assert (response.status, scheme, told["error"]) == (403, "DPoP", "insufficient_scope")


def test_bound_tokens_can_be_demanded() -> None:
    with serve(make_protected(protect(dpop=Dpop(required=True)))) as live:
        response = Peer(live, "stateless", token_for()).tool("who")
        assert (response.status, challenge_of(response)[0]) == (401, "DPoP")
        again = Peer(live, "stateless", token_for()).tool("who")
        assert again.status == 401
        assert Bound(live, "stateless", token()).tool("who").status == 200
        told = live.send(b"", [], verb="GET", path="/.well-known/oauth-protected-resource")
        assert told.json["dpop_bound_access_tokens_required"] is True
        assert told.json["dpop_signing_alg_values_supported"] == ["ES256", "EdDSA"]


def test_a_nonce_can_be_demanded() -> None:
    """Any worker with the same key honours what another gave out."""
    first, second = (make_protected(protect(dpop=Dpop(nonces=True))) for _ in range(2))
    with serve(first) as live, serve(second) as other:
        good = token()
        asked = Bound(live, "stateless", good).tool("who")
        assert (asked.status, challenge_of(asked)[1]["error"]) == (401, "use_dpop_nonce")
        nonce = asked.headers["dpop-nonce"]
        for place in (live, other):
            proof = proof_for(good, nonce=nonce)
            assert Bound(place, "stateless", good).tool("who", {"DPoP": proof}).status == 200
        for wrong in ("x", nonce[:-2], 3):
            again = Bound(live, "stateless", good).tool("who", {"DPoP": proof_for(good, nonce=wrong)})
            assert challenge_of(again)[1]["error"] == "use_dpop_nonce"


@pytest.mark.security("R12")
def test_what_is_remembered_of_proofs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SEEN", 4)
    with serve(make_protected(protect(dpop=Dpop(window=3)))) as live:
        peer = Bound(live, "stateless", token())
        assert [peer.tool("who").status for _ in range(3)] == [200, 200, 401]
        time.sleep(6.1)
        assert peer.tool("who").status == 200


@pytest.mark.security("R12")
def test_who_uses_too_many_proofs_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SEEN", 8)
    with serve(make_protected()) as live:
        mallory = [token_for("mallory", cnf=bound_to(name)) for name in ("first", "other")]
        used = [
            Peer(live, "stateless", one, scheme="DPoP").tool("who", {"DPoP": proof_for(one, key=key)})
            for one, key in zip(mallory * 4, ("first", "other") * 4, strict=True)
        ]
        assert [response.status for response in used] == [200] * 4 + [401] * 4  # with both of its keys together
        assert "Too many proofs" in challenge_of(used[-1])[1]["error_description"]
        assert Bound(live, "stateless", token()).tool("who").status == 200


@pytest.mark.security("R12")
async def test_a_key_without_a_known_caller_has_its_own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SEEN", 8)
    server: Any = SimpleNamespace(backend=MemoryBackend())
    proofs = module.Proofs(Dpop(), server)
    for number in range(4):
        await proofs.use(module.Proof("mallory's", str(number)))
    with pytest.raises(module.ProofRefused, match="Too many proofs were used in the last 120 seconds"):
        await proofs.use(module.Proof("mallory's", "4"))
    await proofs.use(module.Proof("bob's", "0"))


@pytest.mark.security("R14")
@pytest.mark.parametrize("era", ERAS)
def test_a_proof_that_one_worker_has_accepted_is_refused_by_another(era: str) -> None:
    shared = MemoryBackend()
    workers = [make_protected(backend=shared) for _ in range(2)]
    with serve(workers[0]) as one, serve(workers[1]) as other:
        good = token()
        proof = {"DPoP": proof_for(good)}
        assert Bound(one, era, good).tool("who", proof).status == 200
        again = Bound(other, era, good).tool("who", proof)
        assert (again.status, challenge_of(again)[1]["error"]) == (401, "invalid_dpop_proof")
        assert "used before" in challenge_of(again)[1]["error_description"]


async def test_a_proof_that_was_not_accepted_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: Any = SimpleNamespace(backend=MemoryBackend())
    one, other = (module.Proofs(Dpop(), shared) for _ in range(2))
    await one.use(module.Proof("key", "a"))
    with pytest.raises(module.ProofRefused, match="used before"):
        await other.use(module.Proof("key", "a"))
    monkeypatch.setattr(shared.backend, "store", BrokenStore())
    with pytest.raises(ConnectionError):
        await other.use(module.Proof("key", "b"))
    assert (len(one._seen), len(other._seen)) == (1, 0)


@pytest.mark.security("R12")
async def test_a_proof_id_that_comes_again_does_not_keep_older_ones_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful:
        async def swap(self, *_: Any, **__: Any) -> bool:
            return True

    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(shares, "time", clock)
    server: Any = SimpleNamespace(backend=SimpleNamespace(store=Forgetful()))
    proofs = module.Proofs(Dpop(window=1), server)
    for name in "abcdef":
        await proofs.use(module.Proof("key", name))
    clock.now += 3  # all are over
    for name in "deg":
        await proofs.use(module.Proof("key", name))
    assert len(proofs._seen) == 3


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 3600}, {"algorithms": ["HS256"]}, {"algorithms": []}])
def test_settings_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Dpop(**options)


class BrokenStore:
    """A store that cannot be reached."""

    async def swap(self, *_: Any, **__: Any) -> bool:
        raise ConnectionError("redis://10.0.0.7 is gone")


@pytest.mark.security("R1")
@pytest.mark.parametrize("era", ERAS)
def test_where_it_cannot_be_told_whether_a_proof_was_used_nobody_is_let_in(
    era: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_protected()
    with serve(server) as live:
        good = token()
        peer = Bound(live, era, good)
        assert peer.tool("who").status == 200
        monkeypatch.setattr(server.backend, "store", BrokenStore())
        refused = peer.tool("who")
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert b"10.0.0.7" not in refused.body
    assert "The record of proofs raised ConnectionError" in caplog.text
    assert good not in caplog.text
    assert live.faults == []
