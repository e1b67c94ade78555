"""From `server.run()` to the end of the process."""
