"""`make soak`, part four: wrong credentials at both ports of a real broker that requires tokens and passwords.

Every answer must be a refusal. The broker must stay alive, log nothing, keep its memory flat, and serve a client with a
valid token beside it. The seed is printed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.client
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pulsar

from anabranch.protocol import pulsar_pb2 as pb
from anabranch.protocol.commands import frame, read_command
from tests.soak.fuzz import GROWTH_BYTES_MAX
from tests.support.processes.broker_process import HOST, BrokerProcess

ANSWER_S_MAX = 20.0
PASSWORD = "correct-horse"
METHODS = ("token", "token", "token", "basic", "basic", "tls", "athenz", "none", "", "TOKEN", "x" * 2_000)


@dataclass(frozen=True, slots=True)
class Credentials:
    token: str
    files: Path

    @property
    def settings(self) -> list[str]:
        wanted = {
            "security.methods": "token,basic",
            "security.token_secret_key": str(self.files / "secret.key"),
            "security.basic_file": str(self.files / "users"),
            "security.authorization": "true",
            "security.superusers": "admin",
        }
        return [word for name, value in wanted.items() for word in ("--set", f"{name}={value}")]


@dataclass(frozen=True, slots=True)
class Outcome:
    attempts: int
    faults: list[str]
    seconds: float
    rss_before: int
    rss_after: int


def make_credentials(folder: Path) -> Credentials:
    """A secret, a token of `admin`, and a user file, made with the operators' tools."""
    key = folder / "secret.key"
    command = [sys.executable, "-m", "anabranch", "token"]
    subprocess.run([*command, "create-secret-key", "--output", str(key)], check=True, capture_output=True)
    made = subprocess.run(
        [*command, "create", "--secret-key", str(key), "--subject", "admin"], check=True, capture_output=True, text=True
    )
    digest = base64.b64encode(hashlib.sha1(PASSWORD.encode()).digest()).decode()
    (folder / "users").write_text(f"admin:{{SHA}}{digest}\n")
    return Credentials(made.stdout.strip(), folder)


def bad_credentials(seed: int, count: int, token: str) -> Iterator[tuple[str, bytes]]:
    """(method, data) that no broker may accept; some differ from valid ones by one byte."""
    chance = random.Random(seed)
    head, body, signature = token.split(".")
    none_head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    for _ in range(count):
        method = chance.choice(METHODS)
        match chance.randrange(9):
            case 0:
                data = chance.randbytes(chance.choice((0, 1, 16, 300, 8_000)))
            case 1:
                data = f"{none_head}.{body}.".encode()
            case 2:
                data = f"{head}.{body}.".encode()
            case 3:
                other = base64.urlsafe_b64encode(b'{"sub":"admin","exp":99999999999}').rstrip(b"=").decode()
                data = f"{head}.{other}.{signature}".encode()
            case 4:
                text = bytearray(token.encode())
                at = chance.randrange(len(head) + len(body))  # the last bits of the signature may be unused
                text[at] = text[at] ^ (1 << chance.randrange(7))
                data = bytes(text)
            case 5:
                data = token[: chance.randrange(len(token) - 1)].encode()
            case 6:
                data = chance.choice(
                    (b"admin:", b"admin:wrong", b":", b"admin", b"admin:" + b"x" * 5_000, b"\xff:\xfe")
                )
            case 7:
                data = b"." * chance.randrange(1, 2_000)
            case _:
                data = (token + "." + token).encode()
        yield method, data


def door_opens(port: int, method: str, data: bytes) -> bool:
    """CONNECT with these credentials; True if the broker accepts them."""
    connect = pb.CommandConnect(client_version="fuzz", protocol_version=21, auth_method_name=method, auth_data=data)
    with socket.create_connection((HOST, port), timeout=ANSWER_S_MAX) as connection:
        try:
            connection.sendall(frame(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect)))
            received = b""
            while len(received) < 8 or len(received) < 4 + int.from_bytes(received[:4], "big"):
                part = connection.recv(1 << 16)
                if not part:
                    return False
                received += part
        except ConnectionError:
            return False
    kind, _ = read_command(received[8 : 8 + int.from_bytes(received[4:8], "big")])
    return bool(kind == pb.BaseCommand.CONNECTED)


def header_opens(connection: http.client.HTTPConnection, method: str, data: bytes) -> tuple[bool, int]:
    """An admin call with these credentials in its header."""
    scheme = "Basic" if method == "basic" else "Bearer"
    value = base64.b64encode(data).decode() if method == "basic" else data.decode("latin-1")
    value = "".join(letter for letter in value if letter.isprintable())[:16_000]
    connection.request(
        "GET", "/admin/v2/tenants", headers={"Authorization": f"{scheme} {value}".encode("latin-1", "replace")}
    )
    response = connection.getresponse()
    response.read()
    return response.status < 400, response.status


def fuzz_auth(broker: BrokerProcess, credentials: Credentials, attempts: int, seed: int) -> Outcome:
    began, rss_before, faults = time.monotonic(), 0, []
    web = http.client.HTTPConnection(HOST, broker.http_port, timeout=ANSWER_S_MAX)
    for number, (method, data) in enumerate(bad_credentials(seed, attempts, credentials.token), 1):
        if door_opens(broker.port, method, data):
            faults.append(f"let in with {method!r} {data[:120]!r}")
        if number % 3 == 0:
            try:
                opened, status = header_opens(web, method, data)
            except (OSError, http.client.HTTPException) as error:
                opened, status = False, 0
                faults.append(f"{type(error).__name__} over HTTP for {method!r} {data[:120]!r}")
                web.close()
            if opened or status >= 500:
                faults.append(f"{status} over HTTP for {method!r} {data[:120]!r}")
        if number == max(attempts // 5, 1):
            rss_before = broker.rss_bytes()
        if number % 500 == 0:
            round_trip(broker, credentials.token)
    web.close()
    round_trip(broker, credentials.token)
    faults += [f"logged: {line}" for line in broker.log_complaints()]
    if credentials.token in broker.log_path.read_text(errors="replace"):
        faults.append("the log shows a token")
    rss_after = broker.rss_bytes()
    if rss_after - rss_before > GROWTH_BYTES_MAX:
        faults.append(f"resident memory grew from {rss_before >> 20} to {rss_after >> 20} MB")
    return Outcome(attempts, faults, time.monotonic() - began, rss_before, rss_after)


def round_trip(broker: BrokerProcess, token: str) -> None:
    """A client with a valid token is served."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, authentication=pulsar.AuthenticationToken(token), logger=quiet)
    consumer = client.subscribe("persistent://public/default/guarded", "s")
    client.create_producer("persistent://public/default/guarded").send(b"let me in")
    message = consumer.receive(10_000)
    assert message.data() == b"let me in"
    consumer.acknowledge(message)
    client.close()


def main() -> int:
    options = argparse.ArgumentParser(description="Fuzz the credentials of a real broker.")
    options.add_argument("--attempts", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=None)
    arguments = options.parse_args()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    print(f"fuzz credentials: {arguments.attempts:,} attempts, seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="anabranch-fuzz-auth-"))
    credentials = make_credentials(folder)
    with BrokerProcess(folder / "data", arguments=credentials.settings) as broker:
        outcome = fuzz_auth(broker, credentials, arguments.attempts, seed)
        if not outcome.faults:
            broker.stop()
    print(
        f"  {outcome.attempts:,} attempts in {outcome.seconds:.0f} s: none let in; "
        f"resident {outcome.rss_before >> 20} → {outcome.rss_after >> 20} MB"
        if not outcome.faults
        else f"FAILED, seed {seed}, log kept in {folder}: {len(outcome.faults)} faults"
    )
    if outcome.faults:
        print(*outcome.faults[:20], sep="\n  ")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("All held.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
