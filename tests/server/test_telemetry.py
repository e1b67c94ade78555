"""OpenTelemetry: a span around every call, joined to the caller's trace; nothing where it is not installed."""

import importlib.util
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support import VERSION, ask, make_server
from weft import Server
from weft.server.runtime import dispatch as telemetry

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"
ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}

_exporter = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> Iterator[None]:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(_exporter))
    patch = pytest.MonkeyPatch()
    patch.setattr(trace, "_TRACER_PROVIDER", made)  # `set_tracer_provider` is for the life of the process
    yield
    patch.undo()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    _exporter.clear()
    yield _exporter
    _exporter.clear()


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    (span,) = spans.get_finished_spans()
    return span


async def test_a_span_says_what_was_called(spans: InMemorySpanExporter) -> None:
    await ask(make_server(), "tools/call", ADD, id=7)
    span = only(spans)
    assert span.name == "tools/call add"
    assert span.kind is trace.SpanKind.SERVER
    assert span.attributes is not None
    assert span.attributes["mcp.method.name"] == "tools/call"
    assert span.attributes["gen_ai.tool.name"] == "add"
    assert span.attributes["mcp.protocol.version"] == VERSION
    assert span.attributes["jsonrpc.request.id"] == "7"
    assert span.parent is None


@pytest.mark.spec("META-15")
async def test_the_trace_goes_on_from_the_meta(spans: InMemorySpanExporter) -> None:
    await ask(make_server(), "tools/list", meta={"traceparent": TRACEPARENT, "tracestate": "a=b"})
    span = only(spans)
    assert span.name == "tools/list"
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert span.parent.trace_state.get("a") == "b"


async def test_the_trace_goes_on_from_the_header(spans: InMemorySpanExporter) -> None:
    await ask(make_server(), "tools/list", headers={"traceparent": TRACEPARENT})
    parent = only(spans).parent
    assert parent is not None
    assert f"{parent.trace_id:032x}" == TRACE


@pytest.mark.spec("META-15")
async def test_the_meta_counts_before_the_header(spans: InMemorySpanExporter) -> None:
    await ask(make_server(), "tools/list", meta={"traceparent": TRACEPARENT}, headers={"traceparent": OTHER})
    parent = only(spans).parent
    assert parent is not None
    assert f"{parent.trace_id:032x}" == TRACE


@pytest.mark.spec("META-15")
@pytest.mark.parametrize("value", ["", "x", "00-0-0-00", TRACEPARENT[:-3], "ff" + TRACEPARENT])
async def test_a_trace_that_is_none_starts_a_new_one(spans: InMemorySpanExporter, value: str) -> None:
    assert (await ask(make_server(), "tools/list", meta={"traceparent": value})).status == 200
    assert only(spans).parent is None


async def test_a_tool_that_fails_marks_its_span(spans: InMemorySpanExporter) -> None:
    await ask(make_server(), "tools/call", {"name": "fail", "arguments": {"how": "tool"}})
    assert only(spans).status.status_code is trace.StatusCode.ERROR


async def test_a_handlers_own_spans_are_its_children(spans: InMemorySpanExporter) -> None:
    server = Server("nested")

    @server.tool
    async def nested() -> str:
        with trace.get_tracer("mine").start_as_current_span("inner"):
            return "done"

    await ask(server, "tools/call", {"name": "nested"})
    inner, outer = spans.get_finished_spans()
    assert inner.parent is not None
    assert outer.context is not None
    assert inner.parent.span_id == outer.context.span_id


async def test_nothing_at_all_where_it_is_not_installed(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name.startswith("opentelemetry") else find(name)
    )
    assert telemetry.find_tracing() is None
    assert (await ask(make_server(), "tools/call", ADD)).status == 200
    assert spans.get_finished_spans() == ()


async def test_a_provider_may_be_set_while_serving(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    with monkeypatch.context() as without:
        without.setattr(trace, "_TRACER_PROVIDER", None)
        await ask(server, "tools/call", ADD)
        assert not spans.get_finished_spans()
    await ask(server, "tools/call", ADD)
    assert only(spans).name == "tools/call add"


async def test_the_public_question_serves_where_the_variable_is_gone(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Tracing.is_on` reads a private variable first; in a version that renames it, tracing works as before."""
    tracing = telemetry.find_tracing()
    assert tracing is not None
    made = trace.get_tracer_provider()
    monkeypatch.delattr(trace, "_TRACER_PROVIDER")
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made)
    assert tracing.is_on()
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    assert not tracing.is_on()


def test_opentelemetry_has_the_variable_that_is_read() -> None:
    assert hasattr(trace, "_TRACER_PROVIDER"), (
        "weft.server.runtime.dispatch reads it to spare a call 2 %: find the new name"
    )
