"""Trace context: a request carries the trace in which it was made. Nothing where OpenTelemetry is not in use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["traced"]

_KEYS = ("traceparent", "tracestate", "baggage")


def traced(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The params, with the current trace in their `_meta` (META-15).

    A program that traces has imported OpenTelemetry itself; so nothing is imported here for one that does not.
    """
    if "opentelemetry.trace" not in sys.modules:
        return params
    from opentelemetry import context, propagate

    if not context.get_current():  # there is no span and no baggage: most programs have OpenTelemetry and no trace
        return params
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    found = {key: carrier[key] for key in _KEYS if key in carrier}
    return {**params, "_meta": {**found, **params.get("_meta", {})}} if found else params
