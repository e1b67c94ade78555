"""Tests that users of Weft can run against classes of their own."""

from __future__ import annotations

from weft.testing.backend_contract import BackendContract

__all__ = ["BackendContract"]
