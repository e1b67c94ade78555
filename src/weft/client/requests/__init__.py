"""Send requests and read results: retries, rounds, lists, caches, subscriptions."""
