"""Send requests and read results: retries, rounds of questions, lists, caches and subscriptions."""
