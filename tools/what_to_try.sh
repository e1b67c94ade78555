#!/bin/sh
# Prints what a person can do with the example server that `make run` starts on port $1.
set -eu

url=http://127.0.0.1:$1/mcp
project=$(cd "$(dirname "$0")/.." && pwd)
cat <<END
The example server, examples/server.py, is about to listen at $url.
Point an MCP client at it, of any revision, or in another terminal:

  .venv/bin/weft list $url
  .venv/bin/weft call $url add '{"a": 2, "b": 3}'
  .venv/bin/weft call $url search_books '{"genre": "mystery"}'
  .venv/bin/weft read $url library://catalogue

For a client that starts its servers over stdio, the command is:

  $project/.venv/bin/weft run $project/examples/server.py

END
