"""Provide what one call needs: its connection, its reply, the services of the server, tasks and threads."""
