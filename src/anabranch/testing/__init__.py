"""A broker inside your test process: `with Broker() as broker`, or the pytest fixture `anabranch_broker`.

Importing this package is cheap. The modules of the broker load when the first broker starts.

| module | what it is |
|---|---|
| `broker` | `Broker`: a node on its own thread and event loop |
| `plugin` | the pytest plugin with the fixture |
"""

from __future__ import annotations

from anabranch.testing.broker import Broker, BrokerFailed

__all__ = ["Broker", "BrokerFailed"]
