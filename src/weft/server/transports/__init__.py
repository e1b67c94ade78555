"""How messages come in and go out: stdio and HTTP."""
