"""A broker that wants tokens: one role is granted `produce`, another is refused.

It starts a separate broker (yours may run without security); needs pip install 'anabranch[security]'.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pulsar

from anabranch.testing import Broker

TOPIC = "persistent://public/default/orders"


def token_for(role: str, key: Path) -> str:
    """As an operator makes it: `anabranch token create`."""
    command = [sys.executable, "-m", "anabranch", "token", "create", "--secret-key", str(key), "--subject", role]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def grant(broker: Broker, admin: str, role: str, actions: list[str]) -> None:
    request = urllib.request.Request(
        f"{broker.http_url}/admin/v2/namespaces/public/default/permissions/{role}",
        data=json.dumps(actions).encode(),
        headers={"Authorization": f"Bearer {admin}", "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()


def client_of(broker: Broker, token: str) -> pulsar.Client:
    return pulsar.Client(
        broker.service_url,
        authentication=pulsar.AuthenticationToken(token),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        key = Path(directory) / "secret.key"
        make_key = [sys.executable, "-m", "anabranch", "token", "create-secret-key", "--output", str(key)]
        subprocess.run(make_key, check=True)
        settings = {
            "security.methods": ("token",),
            "security.token_secret_key": str(key),
            "security.authorization": True,
            "security.superusers": ("admin",),
        }
        with Broker(settings=settings) as broker:
            grant(broker, token_for("admin", key), "shop", ["produce"])
            shop, stranger = (client_of(broker, token_for(role, key)) for role in ("shop", "stranger"))
            print("shop:", shop.create_producer(TOPIC).send(b"tea"))
            refused = False
            try:
                stranger.create_producer(TOPIC)
            except pulsar.AuthorizationError:
                refused = True
                print("stranger: refused")
            shop.close()
            stranger.close()
    sys.exit(0 if refused else 1)


if __name__ == "__main__":
    main()
