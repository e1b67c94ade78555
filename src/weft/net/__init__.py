"""Share what both sides need of the network: URL and host rules, fetching, rates, log lines."""
