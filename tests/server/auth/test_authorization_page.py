"""The page that has every option of authorization has every one, with its default."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from weft.authorization import AuthorizationServer, RegisteredClient, TrustedIssuer
from weft.server.auth import Dpop, IntrospectionVerifier, JwtVerifier, ResourceServer

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "authorization.md"


@pytest.mark.parametrize(
    "cls",
    [ResourceServer, JwtVerifier, IntrospectionVerifier, Dpop, AuthorizationServer, RegisteredClient, TrustedIssuer],
)
def test_the_page_names_every_option_and_its_default(cls: Any) -> None:
    section = PAGE.read_text().partition(f"\n## `{cls.__name__}`\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^|]*)`)? ?\|", section, flags=re.MULTILINE)
    known = inspect.signature(cls).parameters.values()
    assert {name: default.replace('"', "'") for name, default in rows} == {
        one.name: "" if one.default is one.empty else repr(one.default) for one in known
    }
