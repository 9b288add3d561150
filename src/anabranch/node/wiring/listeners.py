"""The ports of one broker: binary and HTTP, each plain and with TLS, and ports shared by the brokers of a machine.

The binary ports accept no connection before `start`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from anabranch.broker.placement import Address
from anabranch.broker.wire.server import BrokerServer
from anabranch.node.settings.node import NodeSettings
from anabranch.rest.server import HttpServer
from anabranch.runtime.net import Listener, SocketNetwork
from anabranch.runtime.net_tls import TlsNetwork
from anabranch.runtime.tls import TlsServer


class Listeners:
    def __init__(self, settings: NodeSettings, tls: TlsServer | None, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._tls = tls
        self._stack = stack
        self._listeners: list[Listener] = []

    async def open(self, server: BrokerServer, http: HttpServer) -> Address:
        """The address that clients and other brokers use for this one."""
        settings, tls = self._settings, self._tls
        plain = await server.listen(settings.network.host, settings.network.port)
        self._listeners.append(plain)
        self._stack.callback(server.stop_accepting)
        await http.start()
        self._stack.push_async_callback(http.stop)
        host = settings.advertised_host
        service_url, http_url = f"pulsar://{host}:{plain.port}", f"http://{host}:{http.port}"
        if tls is None:
            return Address(service_url, http_url)
        ciphered = await server.listen(settings.network.host, settings.tls.port, TlsNetwork(tls))
        self._listeners.append(ciphered)
        https_port = await http.start_tls(tls, settings.tls.http_port)
        return Address(service_url, http_url, f"pulsar+ssl://{host}:{ciphered.port}", f"https://{host}:{https_port}")

    async def open_front(self, server: BrokerServer, http: HttpServer) -> None:
        """Ports that the brokers of this machine share: any running broker answers lookups there."""
        cluster = self._settings.cluster
        if cluster.front_http_port >= 0:
            await http.start_front(cluster.front_http_port)
        if cluster.front_port >= 0:
            network = SocketNetwork(shares_ports=True)
            self._listeners.append(await server.listen(self._settings.network.host, cluster.front_port, network))

    def start(self) -> None:
        for listener in self._listeners:
            listener.start()
