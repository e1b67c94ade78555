"""Hold one call and one connection: who asks, over what, in which task or thread."""
