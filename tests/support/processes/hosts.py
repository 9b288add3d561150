"""Hosts of a test: where a process runs and under which address. The default is this machine's loopback.

`Hosts` makes more of them: network namespaces with a link each to one bridge. Links can be cut whole, or for packets
from one host to another only. A machine that does not allow namespaces raises `HostsUnavailable`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_NET = "10.213.77"
_INTERFACE = "eth0"


class HostsUnavailable(RuntimeError):
    """Network namespaces cannot be made here."""


@dataclass(frozen=True, slots=True)
class Host:
    address: str
    interface: str
    prefix: tuple[str, ...] = ()  # of a command that runs on it


LOOPBACK = Host("127.0.0.1", "lo")


class Hosts:
    """`with Hosts(["zk", "b1"]) as hosts`: namespaces with addresses of their own; none is left behind. The test itself
    reaches all of them."""

    def __init__(self, names: Sequence[str]) -> None:
        tag = f"{os.getpid() % 100_000}"
        self._bridge = f"anb{tag}"
        self._names = {name: (f"anb{tag}{name}", number) for number, name in enumerate(names, 1)}
        self._cut: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
            raise HostsUnavailable(f"network namespaces cannot be made: {said}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        space, number = self._names[name]
        return Host(f"{_NET}.{number}", _INTERFACE, ("ip", "netns", "exec", space))

    def cut(self, name: str) -> None:
        """The host alone, in both directions. Connections stay open and get no answer."""
        _ip("link", "set", self._outer(name), "down")

    def mend(self, name: str) -> None:
        _ip("link", "set", self._outer(name), "up")

    def cut_way(self, source: str, target: str) -> None:
        """Packets of one host to another are dropped; those of the other way arrive."""
        _ip("-n", self._names[source][0], "route", "add", "blackhole", f"{self[target].address}/32")
        self._cut.add((source, target))

    def mend_way(self, source: str, target: str) -> None:
        _ip("-n", self._names[source][0], "route", "del", "blackhole", f"{self[target].address}/32")
        self._cut.discard((source, target))

    def close(self) -> None:
        for space, _ in self._names.values():
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                _ip("netns", "del", space)  # takes its link along
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{_NET}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for name, (space, number) in self._names.items():
            _ip("netns", "add", space)
            _ip("link", "add", self._outer(name), "type", "veth", "peer", "name", _INTERFACE, "netns", space)
            _ip("link", "set", self._outer(name), "master", self._bridge, "up")
            _ip("-n", space, "addr", "add", f"{_NET}.{number}/24", "dev", _INTERFACE)
            _ip("-n", space, "link", "set", _INTERFACE, "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _outer(self, name: str) -> str:
        return f"{self._bridge}v{self._names[name][1]}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)
