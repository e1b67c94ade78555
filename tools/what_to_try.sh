#!/bin/sh
# Prints what a person can do with the example server that `make run` starts on port $1.
set -eu

url=http://127.0.0.1:$1/mcp
cat <<END

The example server is about to listen at $url. Point any MCP client at it, or in another terminal:

  curl -s $url \\
    -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \\
    -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tools/call' -H 'Mcp-Name: add' \\
    -d '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 2, "b": 3},
         "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                   "io.modelcontextprotocol/clientCapabilities": {}}}}'

The code is examples/server.py: change a tool, press Ctrl-C, run it again. Over stdio: .venv/bin/weft run examples/server.py

END
