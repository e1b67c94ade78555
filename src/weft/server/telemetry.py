"""OpenTelemetry: a span around every call, joined to the caller's trace. Nothing at all where it is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from weft.server.context import Context
from weft.types.base import Result

__all__ = ["middleware"]


def middleware() -> Sequence[Any]:
    """The middleware that traces, or none."""
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.trace") is None:
        return ()
    return (_trace,)


async def _trace(ctx: Context, next: Any) -> Result:
    from opentelemetry import propagate, trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return await next()  # type: ignore[no-any-return] # installed, but nobody listens
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
