"""`weft doctor` with a real Redis."""

import asyncio
import sys
from pathlib import Path

import pytest

from support.ports import find_port
from support.redis_servers import redis_server
from weft import Server
from weft.backends.redis import RedisBackend
from weft.cli.command import main

KEY = "only for this test " * 2


async def test_doctor_finds_workers_with_another_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with redis_server(tmp_path) as redis:
        server = Server("teashop", backend=RedisBackend(redis.url, prefix="staging:"), state_keys=[KEY])
        server.asgi()
        await server.start()
        assert await asyncio.to_thread(main, ["doctor", "--backend", redis.url, "teashop"]) == 0
        assert "No worker of 'teashop' uses this backend now." in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["doctor", "--backend", redis.url, "--prefix", "staging:", "teashop"]) == 0
        assert "serves (key " in capsys.readouterr().out
        await server.stop()


async def test_doctor_tells_each_warning_once_and_all_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server(tmp_path, options={"appendonly": "no"}) as redis:
        server = Server("teashop", backend=RedisBackend(redis.url), state_keys=[KEY, f"{KEY}new"])
        server.asgi()
        await server.start()
        caplog.clear()
        assert await asyncio.to_thread(main, ["doctor", "--backend", redis.url, "teashop"]) == 0
        await server.stop()
    told = capsys.readouterr()
    assert told.out.count("does not save its data to disk") == 1
    assert "does not save its data" not in told.err + caplog.text
    first, second = server.engine.state_keys.ids
    assert f"serves (key {first}, also reads {second})." in told.out


def test_memory_is_nothing_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "memory:", "teashop"]) == 0
    assert capsys.readouterr().out == "ok       Memory is not shared between processes, so there is nothing to check.\n"


@pytest.mark.parametrize(
    ("variable", "arguments", "told"),
    [
        ("", ["--backend", "localhost:6379"], "weft: --backend cannot be used. There is no scheme in this URL."),
        ("localhost", [], "weft: The environment variable WEFT_BACKEND cannot be used. There is no scheme in this"),
    ],
)
def test_doctor_says_where_a_wrong_url_is(
    variable: str,
    arguments: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WEFT_BACKEND", variable)
    assert main(["doctor", *arguments]) == 2
    assert capsys.readouterr().err.startswith(told)


async def test_doctor_warns_of_a_key_that_the_workers_do_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server(tmp_path) as redis:
        server = Server("teashop", backend=RedisBackend(redis.url), state_keys=[KEY.strip()])
        server.asgi()
        await server.start()
        for key, is_told in ((f"{KEY},another secret of this test", False), ("another secret of this test", True)):
            monkeypatch.setenv("WEFT_STATE_KEY", key)
            assert await asyncio.to_thread(main, ["doctor", "--backend", redis.url, "teashop"]) == 0
            assert ("has another key here" in capsys.readouterr().out) == is_told
        monkeypatch.setenv("WEFT_STATE_KEY", "short")
        assert await asyncio.to_thread(main, ["doctor", "--backend", redis.url, "teashop"]) == 0
        assert "warning  The variable WEFT_STATE_KEY cannot be used." in capsys.readouterr().out
        await server.stop()


async def test_doctor_says_at_once_that_redis_is_away() -> None:
    command = [sys.executable, "-m", "weft", "doctor", "--backend", f"redis://127.0.0.1:{find_port()}"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stderr.readline(), 8)
    process.kill()
    await process.wait()
    assert b"cannot be reached yet" in line
    assert line.endswith(b"Trying for 10 s.\n")
