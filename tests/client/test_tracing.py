"""A request carries the trace in which it was made, where the program traces at all."""

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from support.fakes import DISCOVERED, FakePipe
from weft import Client


@pytest.mark.spec("META-15")
async def test_the_current_trace_goes_along() -> None:
    def handle(pipe: FakePipe, message: dict[str, Any]) -> None:
        pipe.answer(message, DISCOVERED if message["method"] == "server/discover" else {"tools": []})

    server = FakePipe(handle)
    tracer = TracerProvider().get_tracer("test")
    async with Client(server) as client:
        await client.request("tools/list", {"_meta": {"com.example/mine": 1}})
        with tracer.start_as_current_span("outer") as span:
            await client.request("tools/list", {"_meta": {"com.example/mine": 1}})
    without, within = (message["params"]["_meta"] for message in server.calls("tools/list"))
    assert "traceparent" not in without
    assert within["traceparent"].split("-")[1] == trace.format_trace_id(span.get_span_context().trace_id)
    assert within["com.example/mine"] == 1
