#!/bin/sh
# Print example commands for the server that `make run` starts on port $1.
set -eu

url=http://127.0.0.1:$1/mcp
project=$(cd "$(dirname "$0")/.." && pwd)
cat <<END
The example server, examples/server.py, will listen at $url.
Connect an MCP client of any protocol version to this URL, or try these commands in another terminal:

  .venv/bin/weft list $url
  .venv/bin/weft call $url add '{"a": 2, "b": 3}'
  .venv/bin/weft call $url search_books '{"genre": "mystery"}'
  .venv/bin/weft read $url library://catalogue

For a client that starts the server itself and uses stdio, the command is:

  $project/.venv/bin/weft run $project/examples/server.py

END
