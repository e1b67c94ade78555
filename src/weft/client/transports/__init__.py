"""How messages travel between a client and its server: one module each."""
