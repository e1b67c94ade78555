"""Connect to servers over HTTP."""
