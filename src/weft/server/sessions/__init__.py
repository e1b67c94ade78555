"""Clients that introduce themselves once: who they are, what was sent to them, their end."""
