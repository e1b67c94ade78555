"""Network code for client and server: checks of URLs and hosts, HTTP requests, rate limits, log lines."""
