"""Weft: one tool, for whoever has a token. A good one is written to a file: the key is made at start."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from weft import Server
from weft.auth import JwtVerifier, ResourceServer

ISSUER = "http://127.0.0.1:9"
RESOURCE = "http://127.0.0.1:8000/mcp"


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int, metavar="PORT", required=True)
    parser.add_argument("--token", type=Path, metavar="FILE", required=True)
    arguments = parser.parse_args()
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    claims = {"iss": ISSUER, "aud": RESOURCE, "sub": "ann", "scope": "use", "exp": time.time() + 3600}
    arguments.token.write_text(jwt.encode(claims, key, "RS256"))
    verifier = JwtVerifier(keys=public, issuer=ISSUER, algorithms=["RS256"])
    auth = ResourceServer(RESOURCE, authorization_servers=[ISSUER], verifier=verifier, scopes=["use"])
    server = Server("bench", version="1.0", auth=auth)
    server.tool(add)
    server.run("http", host="127.0.0.1", port=arguments.http, log_level="warning")


if __name__ == "__main__":
    main()
