"""Answer what a server asks of the client, and call the user's functions."""
