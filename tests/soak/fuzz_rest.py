"""`make soak`, part three: invalid admin requests to a real broker, beside a well-behaved client.

Valid answers are 2xx, 3xx and 4xx, errors as `{"reason": …, "error": …}`. A 5xx, a stack trace, an error in the
broker's log, silence, or a disturbed neighbour is a fault. The seed is printed; the same seed sends the same requests.
"""

from __future__ import annotations

import argparse
import http.client
import json
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.soak.fuzz import GROWTH_BYTES_MAX, GoodClient
from tests.support.fuzz.rest_requests import SOUND, Call, mutated_calls, raw_garbage
from tests.support.processes.broker_process import HOST, BrokerProcess

ANSWER_S_MAX = 20.0
JSON = {"Content-Type": "application/json"}
SAFE = "safe/safe"  # the neighbour's namespace; no mutated request can name it
SAFE_PLACE = (("tenants/safe", b'{"allowedClusters":["standalone"]}'), (f"namespaces/{SAFE}", b"{}"))
PREPARE_EVERY = 300
GARBAGE_EVERY = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    requests: int
    statuses: Counter[int]
    faults: list[str]
    seconds: float
    rss_before: int
    rss_after: int
    good_messages: int


class Caller:
    """One keep-alive connection, reopened when the broker closes it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S_MAX)

    def send(self, call: Call) -> tuple[int, bytes]:
        try:
            return self._send(call)
        except (http.client.RemoteDisconnected, ConnectionError):
            self._connection.close()  # closed between two requests, which the broker may do: try once more
            return self._send(call)

    def _send(self, call: Call) -> tuple[int, bytes]:
        self._connection.request(call.method, call.path, call.body, call.headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def close(self) -> None:
        self._connection.close()


def fault_of(call: Call, status: int, body: bytes) -> str | None:
    """The fault of this answer; None if it is valid."""
    if status >= 500 or b"Traceback" in body:
        return f"{status} {body[:200]!r} to {call}"
    if status >= 400 and call.method != "HEAD":
        try:
            answer = json.loads(body)
            sound = isinstance(answer["reason"], str) and isinstance(answer["error"], str)
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            return f"{status} without reason and code, {body[:200]!r}, to {call}"
    return None


def survives_garbage(port: int, garbage: bytes) -> bool:
    """Send bytes that are hardly HTTP; the broker must answer or close."""
    with socket.create_connection((HOST, port), timeout=ANSWER_S_MAX) as connection:
        try:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
    return True


def prepare(caller: Caller) -> None:
    """Create the resources that requests name, repeatedly, because some requests delete them and handlers should be
    reached.
    """
    for tenant in SOUND["tenant"]:
        caller.send(Call("PUT", f"/admin/v2/tenants/{tenant}", JSON, b'{"allowedClusters":["standalone"]}'))
        for namespace in SOUND["namespace"]:
            caller.send(Call("PUT", f"/admin/v2/namespaces/{tenant}/{namespace}", JSON, b"{}"))
            place = f"/admin/v2/persistent/{tenant}/{namespace}"
            caller.send(Call("PUT", f"{place}/p0/partitions", JSON, b"2"))
            for topic in ("t0", "t1"):
                caller.send(Call("PUT", f"{place}/{topic}", JSON, b""))
                caller.send(Call("PUT", f"{place}/{topic}/subscription/s0", JSON, b""))


def fuzz_rest(broker: BrokerProcess, requests: int, seed: int, tell: Callable[[str], None]) -> Outcome:
    caller = Caller(broker.http_port)
    for path, body in SAFE_PLACE:
        assert caller.send(Call("PUT", f"/admin/v2/{path}", JSON, body))[0] in (204, 409)
    good = GoodClient(broker.service_url, f"persistent://{SAFE}/good-neighbour")
    good.start()
    statuses: Counter[int] = Counter()
    faults: list[str] = []
    garbage = raw_garbage(seed, requests)
    began, rss_before = time.monotonic(), 0
    for number, call in enumerate(mutated_calls(seed, requests), 1):
        if number % PREPARE_EVERY == 1:
            prepare(caller)
        try:
            status, body = caller.send(call)
        except (OSError, http.client.HTTPException) as error:
            faults.append(f"{type(error).__name__}: {error} for {call}")
            caller.close()
        else:
            statuses[status] += 1
            if (fault := fault_of(call, status, body)) is not None:
                faults.append(fault)
        if number % GARBAGE_EVERY == 0 and not survives_garbage(broker.http_port, junk := next(garbage)):
            faults.append(f"silence for {junk[:100]!r}")
        if number == requests // 5:
            rss_before = broker.rss_bytes()
        if number % 5_000 == 0:
            tell(f"{number:,} requests, {broker.rss_bytes() >> 20} MB resident, good client at {good.messages:,}")
    caller.close()
    good.stop()
    if good.fault is not None or good.messages == 0:
        faults.append(f"the good client was disturbed: {good.fault}")
    faults += [f"logged: {line}" for line in broker.log_complaints()]
    rss_after = broker.rss_bytes()
    if rss_after - rss_before > GROWTH_BYTES_MAX:
        faults.append(f"resident memory grew from {rss_before >> 20} to {rss_after >> 20} MB")
    return Outcome(seed, requests, statuses, faults, time.monotonic() - began, rss_before, rss_after, good.messages)


def main() -> int:
    options = argparse.ArgumentParser(description="Fuzz the admin REST of a real broker.")
    options.add_argument("--requests", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=None)
    arguments = options.parse_args()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    print(f"fuzz REST: {arguments.requests:,} requests, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-fuzz-rest-"))
    with BrokerProcess(folder / "data") as broker:
        outcome = fuzz_rest(broker, arguments.requests, seed, lambda text: print(f"  {text}", flush=True))
        if not outcome.faults:
            broker.stop()
    shown = ", ".join(f"{count:,} × {status}" for status, count in sorted(outcome.statuses.items()))
    print(
        f"  {outcome.requests:,} requests in {outcome.seconds:.0f} s: {shown}; resident {outcome.rss_before >> 20} → "
        f"{outcome.rss_after >> 20} MB; good client {outcome.good_messages:,} messages"
    )
    if outcome.faults:
        print(
            f"FAILED, seed {seed}, log kept in {folder}: {len(outcome.faults)} faults", *outcome.faults[:20], sep="\n  "
        )
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("All held.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
