"""Give handlers their Context, and carry their questions to the client and the answers back."""
