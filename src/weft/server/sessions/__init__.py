"""Keep the sessions of clients: their records, live parts and stored streams."""
