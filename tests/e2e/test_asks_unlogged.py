"""What users and models are asked, and what they answer, is nobody's business: no log of ours has it (SAM-13)."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, Field

from support import CLIENT_CAPABILITIES_KEY, Live, serve
from weft import Context, Server

CAN = {CLIENT_CAPABILITIES_KEY: {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}}
SAID = {"role": "assistant", "model": "SECRET-model", "content": {"type": "text", "text": "SECRET-diagnosis"}}


class Patient(BaseModel):
    name: str = Field(max_length=20)


@pytest.fixture(params=[False, True], ids=["", "debug"])
def clinic(request: pytest.FixtureRequest) -> Iterator[Live]:
    server = Server("clinic", debug=request.param)

    @server.tool
    async def diagnose(ctx: Context) -> str:
        patient = await ctx.elicit("SECRET-question", Patient)
        said = await ctx.sample(f"SECRET-prompt {patient.value.name}", max_tokens=5)
        await ctx.elicit_url("SECRET-page", "https://clinic.example/SECRET-path")
        return str(1 / len(said.model[:0]))  # fails, so that there is something to log

    with serve(server) as live:
        yield live


def send(live: Live, **params: Any) -> Any:
    return live.call("tools/call", {"name": "diagnose", **params}, meta=CAN)


def answer(live: Live, asked: dict[str, Any], reply: Any) -> Any:
    ((key, _),) = asked["inputRequests"].items()
    return send(live, inputResponses={key: reply}, requestState=asked["requestState"])


@pytest.mark.spec("SAM-13")
def test_no_log_has_a_question_an_answer_or_a_state(clinic: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in list(logging.Logger.manager.loggerDict):
        if name == "weft" or name.startswith("weft."):
            caplog.set_level(logging.DEBUG, name)
    first = send(clinic).result
    form = {"action": "accept", "content": {"name": "SECRET-name"}}
    second = answer(clinic, first, form).result
    third = answer(clinic, second, SAID).result
    assert answer(clinic, third, {"action": "accept"}).result["isError"]
    states = [asked["requestState"] for asked in (first, second, third)]
    for wrong in ({"action": "accept", "content": {"name": "SECRET" * 9}}, {"action": "SECRET"}, "SECRET"):
        assert answer(clinic, first, wrong).error["code"] == -32602
    assert answer(clinic, second, {"role": "SECRET"}).error["code"] == -32602
    for state in (states[0][:-4] + "SECRET", "SECRET"):
        assert answer(clinic, {**first, "requestState": state}, form).error["code"] == -32602
    records = [record for record in caplog.records if record.name.startswith("weft")]
    assert any("diagnose" in record.getMessage() for record in records)  # the failure was logged
    logged = "\n".join(f"{record.getMessage()} {record.args!r} {record.exc_info!r}" for record in caplog.records)
    assert "SECRET" not in logged
    assert [state for state in states if state[:40] in logged] == []
