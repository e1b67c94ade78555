"""What a handler asks the client in the middle of its work, in either era."""
