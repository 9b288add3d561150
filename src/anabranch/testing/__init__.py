"""A broker inside your test process: `with Broker() as broker`, or the pytest fixture `anabranch_broker`.

Importing this is cheap; the broker's own modules load when the first one starts.
"""

from __future__ import annotations

from anabranch.testing.broker import Broker, BrokerFailed

__all__ = ["Broker", "BrokerFailed"]
