"""OpenTelemetry: a span around every call, joined to the caller's trace. Nothing at all where it is not installed."""

from __future__ import annotations

import importlib.util
from typing import Any

from weft.server.context import Context
from weft.types.base import Result

__all__ = ["Tracing", "find_tracing"]

_UNKNOWN = object()


def find_tracing() -> Tracing | None:
    """Return what traces calls; None where OpenTelemetry is not installed."""
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.trace") is None:
        return None
    return Tracing()


class Tracing:
    """Makes spans while a tracer provider is set.

    Many programs have OpenTelemetry installed because a framework brings it, and no provider. A provider may be set at
    any time. So `is_on` is asked with every call, and costs next to nothing.
    """

    def __init__(self) -> None:
        from opentelemetry import trace

        self._trace: Any = trace
        trace.get_tracer_provider()  # loads the one that OTEL_PYTHON_TRACER_PROVIDER names

    def is_on(self) -> bool:
        """Return whether a tracer provider is set.

        The public question reads the environment each time, which is 2 % of a call. So the module's own variable is
        read first, where this version has it.
        """
        trace = self._trace
        if getattr(trace, "_TRACER_PROVIDER", _UNKNOWN) is None:
            return False
        return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    async def around(self, ctx: Context, next: Any) -> Result:
        """Make a span around one call; a middleware."""
        from opentelemetry import propagate, trace

        meta = ctx.params.meta
        carrier = {
            key: value
            for key in ("traceparent", "tracestate", "baggage")
            if (value := getattr(meta, key, None) or ctx.headers.get(key))
        }
        name = getattr(ctx.params, "name", None) or getattr(ctx.params, "uri", None)
        attributes: dict[str, Any] = {
            "mcp.method.name": ctx.method,
            "mcp.protocol.version": ctx.protocol_version,
            "jsonrpc.request.id": str(ctx.request_id),
        }
        if ctx.method == "tools/call":
            attributes["gen_ai.tool.name"] = name
        tracer = trace.get_tracer("weft")
        title = f"{ctx.method} {name}" if name else ctx.method
        with tracer.start_as_current_span(
            title, context=propagate.extract(carrier), kind=trace.SpanKind.SERVER, attributes=attributes
        ) as span:
            result: Result = await next()
            if getattr(result, "is_error", False):
                span.set_status(trace.StatusCode.ERROR, "the tool failed")
            return result
