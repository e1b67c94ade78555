"""Backends keep what workers share: `base` is the interface, `memory` the backend for one process."""
