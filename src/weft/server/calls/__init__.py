"""Provide what one call needs: its client, its reply, its server, tasks and threads."""
