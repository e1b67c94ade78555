"""Servers mounted in, and wrapped by, what others wrote."""

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount, Route

from weft import Server

server = Server("flights")

api = FastAPI()
api.mount("/", server.asgi("/mcp"))
api.routes.append(Route("/mcp", server.asgi()))
starlette = Starlette(routes=[Mount("/", server.asgi("/mcp")), Route("/one", server.asgi())])

app = CORSMiddleware(server.asgi("/mcp"), allow_origins=["https://inspector.example"], allow_headers=["*"])
both = CORSMiddleware(app=server.asgi(), allow_methods=["POST"])

api.mount("/wrong", server)  # expect error
CORSMiddleware(server)  # expect error
server.asgi(pth="/mcp")  # expect error
server.asgi(allowed_hosts=5)  # expect error

if __name__ == "__main__":
    uvicorn.run(server.asgi(), port=8000)
    uvicorn.run(app, port=8000)
    uvicorn.Server(uvicorn.Config(server.asgi("/mcp"))).run()
