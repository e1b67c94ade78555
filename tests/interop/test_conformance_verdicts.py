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


def test_a_pass_for_the_wrong_reason_does_not_count(runner: ModuleType) -> None:
    exceptions = runner.Exceptions({"ping": "no such tool yet"}, frozenset({"ping"}))
    assert runner.judge("ping", checks(ping="SUCCESS"), exceptions).word == "excepted"


def test_a_wrong_reason_ends_when_its_tool_is_there(runner: ModuleType) -> None:
    tool, scenario = "test_input_required_result_elicitation", "input-required-result-validate-input"
    assert runner.read_exceptions(["test_simple_text"]).vacuous == {scenario}
    assert runner.read_exceptions(["test_simple_text", tool]).vacuous == frozenset()
