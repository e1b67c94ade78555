"""What programs use of the client: `Client`, its targets, its results."""
