"""What the user's own part of a login does wrong: storages and functions that fail, told in one clear error."""

import asyncio
import logging
import os
from contextlib import asynccontextmanager

import pytest
from auth_world import REDIRECT, SERVER, TOKEN, Person, World, go, json_response, oauth

from weft.client.auth import FileStorage, FunctionRedirect, MemoryStorage, OAuth, WorkloadIdentity
from weft.errors import AuthorizationFailed, UsageError


class Failing(MemoryStorage):
    """Fails as it is told to; the error has a secret in its text."""

    def __init__(self, *, reading: Exception | None = None, writing: Exception | None = None) -> None:
        super().__init__()
        self.reading = reading
        self.writing = writing

    async def get(self, key):
        if self.reading is not None:
            raise self.reading
        return await super().get(key)

    async def put(self, key, value):
        if self.writing is not None:
            raise self.writing
        await super().put(key, value)


async def test_a_storage_that_cannot_be_read_is_told_before_anybody_logs_in():
    person, cause = Person(), RuntimeError("SECRET")
    with pytest.raises(AuthorizationFailed) as failure:
        await go(oauth(World(), person, Failing(reading=cause)))
    assert str(failure.value) == (
        "Stored logins cannot be read: Failing failed (RuntimeError). Repair it, and try again."
    )
    assert failure.value.__cause__ is cause
    assert person.asked == []


async def test_a_login_is_not_thrown_away_because_it_cannot_be_kept(caplog):
    world, person, now = World(), Person(), [1000.0]
    world.answers[TOKEN] = json_response(
        {"access_token": "t", "token_type": "Bearer", "expires_in": 60, "refresh_token": "SECRET"}
    )
    storage = Failing(writing=RuntimeError("SECRET"))
    auth = oauth(world, person, storage, now)
    assert await go(auth) is True
    (entry,) = caplog.records
    assert entry.levelno == logging.WARNING
    assert entry.getMessage() == (
        "The login cannot be stored, and will be lost when this program ends: Failing failed (RuntimeError). Repair "
        "it, or give another `storage=`."
    )
    now[0] += 50
    storage.writing = None
    world.answers[TOKEN] = json_response({"access_token": "u", "token_type": "Bearer", "refresh_token": "SECRET"})
    assert await auth.headers(SERVER, "POST") == {"Authorization": "Bearer u"}  # who we are was remembered, too
    assert [form["grant_type"] for form in world.forms()] == ["authorization_code", "refresh_token"]
    assert len(person.asked) == 1
    assert any(b'"u"' in value for value in storage._kept.values())  # it is kept as soon as it can be
    assert not any(key.startswith("token ") for key in auth._ports.unkept)
    assert "SECRET" not in repr(auth._ports)


async def test_a_file_that_cannot_be_written_is_named(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert await go(oauth(World(), Person(), FileStorage(tmp_path / "file" / "tokens.json"))) is True
    (entry,) = (entry.getMessage() for entry in caplog.records if "cannot be stored" in entry.getMessage())
    assert "FileStorage failed (FileExistsError: " in entry
    assert os.fspath(tmp_path / "file") in entry


async def test_a_lock_that_another_program_holds_costs_no_login(caplog):
    storage = Failing(writing=AuthorizationFailed("Another program has held it. End that program, and try again."))
    assert await go(oauth(World(), Person(), storage)) is True
    assert "Failing failed (Another program has held it. End that program, and try again). Repair" in caplog.text


async def test_a_file_that_others_can_read_is_still_refused():
    storage = Failing(writing=UsageError("run `chmod 600`"))
    with pytest.raises(UsageError, match="chmod 600"):
        await go(oauth(World(), Person(), storage))


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_redirect_function_that_fails_is_one_clear_error_for_all_who_wait(is_async):
    called: list[str] = []

    def fail(url):
        called.append(url)
        raise ZeroDivisionError("SECRET")

    async def fail_later(url):
        await asyncio.sleep(0.01)
        fail(url)

    redirect = FunctionRedirect(fail_later if is_async else fail, REDIRECT)
    auth = OAuth(redirect=redirect, fetcher=World())
    failures = await asyncio.gather(*(go(auth) for _ in range(5)), return_exceptions=True)
    assert {str(failure) for failure in failures} == {
        "The login was cancelled: the redirect failed (ZeroDivisionError). Repair it, and try again."
    }
    assert {type(failure) for failure in failures} == {AuthorizationFailed}
    assert {type(failure.__cause__) for failure in failures} == {ZeroDivisionError}
    assert len(called) == 1


async def test_a_function_that_gets_an_assertion_and_fails_is_named():
    def fail():
        raise KeyError("SECRET")

    with pytest.raises(AuthorizationFailed) as failure:
        await go(WorkloadIdentity("robot", fail, fetcher=World()))
    assert str(failure.value) == "The function given as `assertion` failed (KeyError). Repair it, and try again."
    assert isinstance(failure.value.__cause__, KeyError)


@pytest.mark.parametrize("moment", ["entering", "leaving"])
async def test_a_storage_that_cannot_be_claimed_is_named(moment):
    class Unclaimed(MemoryStorage):
        @asynccontextmanager
        async def claimed(self, key):
            if moment == "entering":
                raise RuntimeError("SECRET")
            yield
            raise RuntimeError("SECRET")

    world, now = World(), [1000.0]
    world.answers[TOKEN] = json_response({"access_token": "a", "token_type": "Bearer", "refresh_token": "r"})
    auth = oauth(world, Person(), Unclaimed(), now)
    await go(auth)
    now[0] += 60
    with pytest.raises(AuthorizationFailed) as failure:
        await go(auth)
    assert str(failure.value) == (
        "Stored logins cannot be locked: Unclaimed failed (RuntimeError). Repair it, and try again."
    )
    assert isinstance(failure.value.__cause__, RuntimeError)
