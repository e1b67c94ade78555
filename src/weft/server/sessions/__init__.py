"""Store the sessions of clients: their records, their live parts and the events of their streams."""
