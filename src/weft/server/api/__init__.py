"""What programs use of the server: `Server`, extensions, the lifespan."""
