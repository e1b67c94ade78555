"""The two eras of the protocol, and the only code that knows how they differ."""
