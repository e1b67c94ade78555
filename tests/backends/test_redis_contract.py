"""The backend in Redis does everything that the interface says, on one server and on a cluster."""

import pytest

from support.redis_servers import Cluster, RedisServer
from weft.backends import Backend
from weft.backends.redis import RedisBackend
from weft.testing import BackendContract


class TestRedis(BackendContract):
    @pytest.fixture(autouse=True)
    def _server(self, shared_redis: RedisServer) -> None:
        self.url = shared_redis.url

    async def make_backend(self) -> Backend:
        return RedisBackend(self.url)


class TestRedisCluster(BackendContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, shared_cluster: Cluster) -> None:
        self.url = shared_cluster.url

    async def make_backend(self) -> Backend:
        return RedisBackend(self.url)
