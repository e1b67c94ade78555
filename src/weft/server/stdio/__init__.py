"""Serve clients that send one message per line: over stdin and stdout, or in the same process."""
