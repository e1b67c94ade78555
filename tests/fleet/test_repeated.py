"""Every module of `tests/e2e` is repeated at several processes, or it is said here why not."""

import re
from pathlib import Path

HERE = Path(__file__).parent
E2E = HERE.parent / "e2e"

OWN_PROCESS = "its processes end, stall or fail on purpose; tests/test_deploy.py and test_chaos.py do so with several"
IN_PROCESS = "its servers are in the process of the test, which reaches into them"
ONE_BACKEND = f"{IN_PROCESS}; those with a shared backend are in tests/server/test_fleet.py"
PIPE = "it is about pipes, which have one process"
LOGINS = "the authorization server has tests of its own for several workers: test_auth_workers.py"
TOKENS = f"{IN_PROCESS} to issue tokens; who a caller is, each worker finds out alone"
SEVERAL = "it has several workers already"
WHOLE = "it starts and measures one process"
BYTES = "it is about bytes that are refused before any worker needs another one"

NOT_REPEATED = {
    "test_asks_state": ONE_BACKEND,
    "test_asks_unlogged": IN_PROCESS,
    "test_auth": TOKENS,
    "test_auth_bound": LOGINS,
    "test_auth_consent": LOGINS,
    "test_auth_dpop": TOKENS,
    "test_auth_ends": LOGINS,
    "test_auth_introspection": LOGINS,
    "test_auth_login": LOGINS,
    "test_auth_places": LOGINS,
    "test_auth_programs": LOGINS,
    "test_auth_resources": LOGINS,
    "test_auth_scopes": TOKENS,
    "test_auth_settings": LOGINS,
    "test_auth_storage": "it is about a file of clients",
    "test_auth_streams": TOKENS,
    "test_auth_verifier_alone": TOKENS,
    "test_auth_workers": SEVERAL,
    "test_connect_account": LOGINS,
    "test_extensions_everywhere": IN_PROCESS,
    "test_frames": WHOLE,
    "test_fuzz": BYTES,
    "test_hostile_input": f"{BYTES}; some of them nginx refuses itself",
    "test_late_words": IN_PROCESS,
    "test_limits": "limits of connections, bodies and queues are counted by each process alone",
    "test_listen_stdio": PIPE,
    "test_missing_capabilities": IN_PROCESS,
    "test_mounted_exit": OWN_PROCESS,
    "test_mounting": IN_PROCESS,
    "test_requirements_one_by_one": IN_PROCESS,
    "test_session_exit": OWN_PROCESS,
    "test_session_failures": ONE_BACKEND,
    "test_session_leaks": "test_abandoned_sessions.py does the same at several processes",
    "test_session_limits": ONE_BACKEND,
    "test_session_races": ONE_BACKEND,
    "test_session_workers": SEVERAL,
    "test_sessions_pipe": PIPE,
    "test_shared_workers": SEVERAL,
    "test_stalled": OWN_PROCESS,
    "test_stopping": OWN_PROCESS,
}


def test_every_module_is_repeated_or_has_a_reason() -> None:
    found = {file.stem for file in E2E.glob("test_*.py")}
    repeated = {
        name for file in HERE.glob("test_*.py") for name in re.findall(r"repeat\((test_\w+), ", file.read_text())
    } & found
    assert NOT_REPEATED.keys() | repeated == found
    assert NOT_REPEATED.keys().isdisjoint(repeated)
