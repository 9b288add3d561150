"""The stock `pulsar-client` as tests want it: quiet, and with short timeouts."""

from __future__ import annotations

from typing import Any

import pulsar


def new_client(service_url: str, **options: Any) -> pulsar.Client:
    """A stock client that says nothing below errors; options are those of `pulsar.Client`."""
    options.setdefault("logger", pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    options.setdefault("operation_timeout_seconds", 15)
    return pulsar.Client(service_url, **options)
