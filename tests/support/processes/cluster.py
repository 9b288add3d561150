"""Several brokers on one data directory and one metadata store, each in its own process, for tests and soaks.

Knows how to start, kill, freeze, cut off and stop them and whom a lookup names; knows nothing of what they do.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.processes.broker_process import BrokerFailed, BrokerProcess
from tests.support.processes.hosts import LOOPBACK, Host

WAIT_S_MAX = 60.0
_POLL_S = 0.02


class ClusterProcesses:
    """`with ClusterProcesses(folder, 3) as cluster`: brokers b1, b2, b3 serve; none is left behind."""

    def __init__(
        self,
        folder: Path,
        size: int,
        *,
        metadata_url: str | None = None,
        metadata_urls: Mapping[str, str] | None = None,
        session_ms: int | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        hosts: Sequence[Host] = (),
    ) -> None:
        """`hosts`: one for each broker; none: all run on this machine. `metadata_urls`: for brokers that reach the
        store by another way than the rest (through a proxy)."""
        self.folder = folder
        self.data = folder / "data"
        self.brokers: dict[str, BrokerProcess] = {}
        for number in range(1, size + 1):
            name = f"b{number}"
            options = ["--set", "cluster.enabled=true", "--set", f"storage.broker_id={name}"]
            url = (metadata_urls or {}).get(name, metadata_url)
            if url is None and "--metadata" not in arguments:
                url = f"sqlite:///{self.data.absolute()}/metadata"  # said, because storage on bookies has no default
            if url is not None:
                options += ["--set", f"metadata.url={url}"]
            if session_ms is not None:
                options += ["--set", f"cluster.session_ms={session_ms}"]
            self.brokers[name] = BrokerProcess(
                self.data,
                arguments=[*options, *arguments],
                name=name,
                environment=environment,
                host=hosts[number - 1] if hosts else LOOPBACK,
            )

    @property
    def alive(self) -> list[BrokerProcess]:
        return [broker for broker in self.brokers.values() if broker.is_alive]

    @property
    def service_url(self) -> str:
        """All of them, as the stock client takes it."""
        return f"pulsar://{','.join(f'{one.host.address}:{one.port}' for one in self.brokers.values())}"

    @property
    def http_url(self) -> str:
        """Of one of them; calls that another one serves are sent on."""
        return self.alive[0].http_url

    def start(self) -> Self:
        """All serve when this returns; when they cannot, none is left."""
        try:
            for broker in self.brokers.values():
                broker.launch()
            for broker in self.brokers.values():
                broker.wait_ready()
            self.wait_settled()
        except BaseException:
            self.close()
            raise
        return self

    def revive(self) -> None:
        """Starts dead brokers and resumes stopped ones; all serve when this returns.

        On failure all are stopped, so that the next test begins with new processes.
        """
        try:
            for broker in self.alive:
                broker.thaw()
            self.launch_missing()
            for broker in self.brokers.values():
                broker.wait_ready()
            self.wait_settled()
        except BaseException:
            self.close()
            raise

    def launch_missing(self) -> None:
        for broker in self.brokers.values():
            if not broker.is_alive:
                broker.kill9()  # forgets a process that ended by itself
                broker.launch()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- who serves what

    def owner(self, topic: str, *, by: BrokerProcess | None = None, within_s: float = WAIT_S_MAX) -> BrokerProcess:
        """The broker that a lookup names, asked of `by` or of anybody."""
        found: list[BrokerProcess] = []

        def asked() -> bool:
            url = self._lookup(topic, by)
            found[:] = [broker for broker in self.brokers.values() if broker.service_url == url]
            return bool(found)

        self.until(asked, f"no broker serves {topic}", within_s)
        return found[0]

    def topics_of_each(self, namespace: str = "public/default", prefix: str = "t") -> list[str]:
        """One topic name per broker, of topics that it would serve."""
        found: dict[int, str] = {}
        for number in range(200):
            topic = f"persistent://{namespace}/{prefix}{number}"
            found.setdefault(self.owner(topic).port, topic)
            if len(found) == len(self.brokers):
                return list(found.values())
        raise BrokerFailed(f"not every broker would serve one of 200 topics\n{self.log_tail()}")

    def wait_settled(self, within_s: float = WAIT_S_MAX) -> None:
        """Until every living broker serves some of a spread of topics, and all of them agree on who serves which."""
        topics = [f"persistent://public/default/settled-{number}" for number in range(24)]

        def agreed() -> bool:
            views: list[list[str]] = []
            for broker in self.alive:
                views.append([])
                for topic in topics:
                    url = self._lookup(topic, broker)
                    if url is None:  # no use to wait for the rest of its answers
                        return False
                    views[-1].append(url)
            return all(view == views[0] for view in views) and set(views[0]) == {b.service_url for b in self.alive}

        self.until(agreed, "the brokers do not agree", within_s)

    def _lookup(self, topic: str, by: BrokerProcess | None) -> str | None:
        for broker in [by] if by is not None else self.alive:
            try:
                answer = rest(broker, "GET", f"/lookup/v2/topic/{topic.replace('://', '/')}")
            except (OSError, RestRefused):
                continue
            return str(answer["brokerUrl"])
        return None

    def until(self, done: Callable[[], bool], complaint: str, within_s: float = WAIT_S_MAX) -> None:
        deadline = time.monotonic() + within_s
        while not done():
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{complaint} within {within_s} s\n{self.log_tail()}")
            time.sleep(_POLL_S)  # a poll of the outside world, bounded by the deadline

    # -- logs

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(f"=== {name}\n{broker.log_tail(lines)}" for name, broker in self.brokers.items())

    def log_complaints(self) -> list[str]:
        return [f"{name}: {line}" for name, broker in self.brokers.items() for line in broker.log_complaints()]


class RestRefused(RuntimeError):
    """The broker answered, but not with what was asked for."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status = status


def rest(broker: BrokerProcess, method: str, path: str, body: object = None, *, within_s: float = 10.0) -> Any:
    """One request (redirects are followed); the decoded answer, None when it is empty."""
    data = None if body is None else json.dumps(body).encode()
    url, tries = f"{broker.http_url}{path}", 0
    while True:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=within_s) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            tries += 1
            if error.code == 307 and tries < 5:  # urllib follows redirects of GET and HEAD only
                url = error.headers["Location"]
                continue
            raise RestRefused(error.code, error.read().decode(errors="replace")) from error
