"""How conformance/run.py judges what the official suite reports: nothing is green for the wrong reason."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "conformance" / "run.py"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance_run", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def checks(**statuses: str) -> list[dict[str, Any]]:
    return [{"id": id.replace("_", "-"), "status": status} for id, status in statuses.items()]


def test_a_scenario_whose_checks_succeed_passes(runner: ModuleType) -> None:
    verdict = runner.judge("ping", checks(ping="SUCCESS", note="INFO"), runner.Exceptions({}))
    assert (verdict.word, verdict.problems) == ("passed", [])


@pytest.mark.parametrize("status", ["FAILURE", "WARNING", "SKIPPED"])
def test_every_other_status_fails(runner: ModuleType, status: str) -> None:
    verdict = runner.judge("ping", checks(ping="SUCCESS", other=status), runner.Exceptions({}))
    assert verdict.word == "FAILED"
    assert verdict.problems[0].startswith(f"{status} other")


def test_a_scenario_without_results_fails(runner: ModuleType) -> None:
    assert runner.judge("ping", [], runner.Exceptions({})).word == "FAILED"


def test_well_formed_messages_alone_prove_nothing(runner: ModuleType) -> None:
    assert runner.judge("ping", checks(wire_schema_valid="SUCCESS"), runner.Exceptions({})).word == "FAILED"


@pytest.mark.parametrize("entry", ["ping", "ping:other"])
def test_an_exception_with_a_reason_excuses(runner: ModuleType, entry: str) -> None:
    verdict = runner.judge("ping", checks(ping="SUCCESS", other="FAILURE"), runner.Exceptions({entry: "later"}))
    assert (verdict.word, verdict.excused) == ("excepted", {"other": "later"})


@pytest.mark.parametrize("entry", ["ping", "ping:other", "ping:never-seen"])
def test_an_exception_that_passes_fails(runner: ModuleType, entry: str) -> None:
    verdict = runner.judge("ping", checks(ping="SUCCESS", other="SUCCESS"), runner.Exceptions({entry: "later"}))
    assert verdict.problems == [f"passes, so take {entry!r} out of exceptions.toml"]


def test_an_exception_for_one_check_excuses_no_other(runner: ModuleType) -> None:
    verdict = runner.judge("ping", checks(ping="FAILURE", other="FAILURE"), runner.Exceptions({"ping:other": "later"}))
    assert verdict.word == "FAILED"
    assert len(verdict.problems) == 1


def test_a_call_for_a_tool_that_is_not_there_fails(runner: ModuleType) -> None:
    exceptions = runner.Exceptions({"ping": "later"}, frozenset({"greet"}))
    assert runner.general_problems(["ping"], frozenset({"greet"}), exceptions) == []
    [problem] = runner.general_problems(["ping"], frozenset({"greet", "test_sampling"}), exceptions)
    assert problem == "The suite calls 'test_sampling', which the fixture lacks."


def test_what_is_no_longer_lacking_fails(runner: ModuleType) -> None:
    exceptions = runner.Exceptions({}, frozenset({"greet"}))
    [problem] = runner.general_problems([], frozenset(), exceptions)
    assert "'greet'" in problem


def test_an_exception_for_no_scenario_fails(runner: ModuleType) -> None:
    [problem] = runner.general_problems(["ping"], frozenset(), runner.Exceptions({"pong:reply": "later"}))
    assert "'pong:reply'" in problem


def test_only_tasks_and_what_does_not_apply_are_excepted(runner: ModuleType) -> None:
    entries = [entry for run in runner.RUNS for entry in runner.read_exceptions(run).reasons]
    assert all(entry.startswith("tasks-") or entry.endswith(":SKIPPED") for entry in entries)


def test_an_exception_for_one_status_excuses_no_other(runner: ModuleType) -> None:
    exceptions = runner.Exceptions({"ping:other:SKIPPED": "not for us"})
    assert runner.judge("ping", checks(ping="SUCCESS", other="SKIPPED"), exceptions).word == "excepted"
    assert runner.judge("ping", checks(ping="SUCCESS", other="FAILURE"), exceptions).word == "FAILED"
    assert runner.judge("ping", checks(ping="SUCCESS", other="SUCCESS"), exceptions).word == "FAILED"


@pytest.mark.parametrize(("said", "word"), [("ended well", "passed"), ("", "FAILED")])
def test_a_client_that_does_not_end_well_fails_its_scenario(
    runner: ModuleType, tmp_path: Path, said: str, word: str
) -> None:
    folder = tmp_path / "auth" / "dpop-2026-11-15T11-42-33-298Z"
    folder.mkdir(parents=True)
    (folder / "checks.json").write_text('[{"id": "dpop", "status": "SUCCESS"}]')
    (folder / "stdout.txt").write_text(said)
    (folder / "stderr.txt").write_text("RemoteError: no")
    results = runner.read_results(tmp_path, "client")
    verdict = runner.judge("auth/dpop", results["auth/dpop"], runner.Exceptions({}))
    assert verdict.word == word
    assert all("RemoteError: no" in problem for problem in verdict.problems)


def test_every_side_and_revision_has_its_run(runner: ModuleType) -> None:
    names = [run.name for run in runner.RUNS]
    assert len(names) == len(set(names))
    assert {"client 2026-07-28", "client 2025-11-25", "client 2025-03-26"} <= set(names)
    assert {"client extensions 2026-07-28", "client extensions 2025-11-25", "authorization 2026-07-28"} <= set(names)


def test_no_login_is_excepted(runner: ModuleType) -> None:
    entries = [entry for run in runner.RUNS for entry in runner.read_exceptions(run).reasons]
    assert [entry for entry in entries if entry.startswith(("auth/", "authorization"))] == []
