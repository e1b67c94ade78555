"""Network code that client and server share: rules for URLs and hosts, HTTP requests, rate limits, log lines."""
