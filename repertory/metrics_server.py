"""Numbers for Prometheus over HTTP: whoever has some hands in a collector, which is asked anew."""

from __future__ import annotations

from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from repertory.closing import Closing
from repertory.errors import UsageError


class MetricsServer(Closing):
    """Answers on HTTP from the moment it is made."""

    def __init__(self, address: str, collector: Collector) -> None:
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        self._http: WSGIServer
        self._thread: Thread
        try:
            self._http, self._thread = start_http_server(
                int(port), host.strip("[]"), registry=registry
            )
        except OSError as error:
            raise UsageError(f"cannot serve metrics on {address}: {error.strerror}") from error
        self.address = f"{host}:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
