"""Redis servers that tests share if they leave them as they are."""

from collections.abc import Iterator

import pytest

from support.redis_servers import Cluster, RedisServer, redis_cluster, redis_server


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server."""
    with redis_server(tmp_path_factory.mktemp("redis")) as redis:
        yield redis


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of three masters."""
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
