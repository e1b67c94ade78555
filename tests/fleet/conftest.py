"""The two deployments of several processes, for the tests of this folder.

- "redis": three `weft run FILE --http --backend redis://...` behind nginx in round robin, without affinity
- "workers": `weft run FILE --http --workers 3`, without Redis
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from pathlib import Path

import pytest

from support.deployments import Deployment, behind_nginx, with_workers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

DEPLOYMENTS: dict[str, Callable[..., AbstractContextManager[Deployment]]] = {
    "redis": behind_nginx,
    "workers": with_workers,
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Deployment]]:
    """Starts a server in a deployment: one of tests/fleet/servers, by its name, or a file.

    It runs until the end of the module, and is not started twice.
    """
    with ExitStack() as stack:

        @cache
        def start(kind: str, server: str | Path, *options: str) -> Deployment:
            file = server if isinstance(server, Path) else HERE / "servers" / f"{server}.py"
            folder = tmp_path_factory.mktemp(f"{file.stem}-{kind}")
            return stack.enter_context(DEPLOYMENTS[kind](file, folder, *options))

        yield start


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def deploy(request: pytest.FixtureRequest, started: Callable[..., Deployment]) -> Callable[..., Deployment]:
    """The same in each of the deployments, by the name of the server."""
    return partial(started, request.param)
