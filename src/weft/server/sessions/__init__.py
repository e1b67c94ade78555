"""Keep the sessions of clients that shake hands: records, live parts, stored streams."""
