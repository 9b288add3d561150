"""The ports of one broker: binary and HTTP, each plain, with TLS or both, and ports shared by the brokers of a machine.

The binary ports accept no connection before `start`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from anabranch.broker.placement import Address
from anabranch.broker.wire.server import BrokerServer
from anabranch.node.settings.advertised_listeners import parse_listeners
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
        return self._advertised(await self._open(server, http))

    def _advertised(self, bound: Address) -> Address:
        """With the addresses of `network.advertised_listeners`; the internal one is for clients that name none."""
        network = self._settings.network
        listeners = parse_listeners(network.advertised_listeners)
        if not listeners:
            return bound
        return replace(bound, listeners=listeners).of_listener(network.internal_listener or listeners[0].name)

    async def _open(self, server: BrokerServer, http: HttpServer) -> Address:
        self._stack.callback(server.stop_accepting)
        self._stack.push_async_callback(http.stop)
        if self._tls is None:
            return Address(*await self._open_plain(server, http))
        if self._settings.tls.only:  # the same addresses for everyone: there are no others
            urls = await self._open_tls(server, http, self._tls)
            return Address(*urls, *urls)
        return Address(*await self._open_plain(server, http), *await self._open_tls(server, http, self._tls))

    async def _open_plain(self, server: BrokerServer, http: HttpServer) -> tuple[str, str]:
        settings = self._settings
        plain = await server.listen(settings.network.host, settings.network.port)
        self._listeners.append(plain)
        await http.start()
        host = settings.advertised_host
        return f"pulsar://{host}:{plain.port}", f"http://{host}:{http.port}"

    async def _open_tls(self, server: BrokerServer, http: HttpServer, tls: TlsServer) -> tuple[str, str]:
        settings = self._settings
        encrypted = await server.listen(settings.network.host, settings.tls.port, TlsNetwork(tls))
        self._listeners.append(encrypted)
        https_port = await http.start_tls(tls, settings.tls.http_port)
        host = settings.advertised_host
        return f"pulsar+ssl://{host}:{encrypted.port}", f"https://{host}:{https_port}"

    async def open_front(self, server: BrokerServer, http: HttpServer) -> None:
        """Ports that the brokers of this machine share: any running broker answers lookups there."""
        cluster, host = self._settings.cluster, self._settings.network.host
        if cluster.front_http_port >= 0:
            await http.start_front(cluster.front_http_port)
        if cluster.front_port >= 0:
            network = SocketNetwork(shares_ports=True)
            self._listeners.append(await server.listen(host, cluster.front_port, network))
        if self._tls is None:
            return
        if cluster.front_tls_http_port >= 0:
            await http.start_tls(self._tls, cluster.front_tls_http_port, shares_port=True)
        if cluster.front_tls_port >= 0:
            shared = TlsNetwork(self._tls, shares_ports=True)
            self._listeners.append(await server.listen(host, cluster.front_tls_port, shared))

    def start(self) -> None:
        for listener in self._listeners:
            listener.start()
