"""Run a server as a process: load the program, bind the socket, start uvicorn and workers."""
