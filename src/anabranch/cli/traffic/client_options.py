"""Options shared by `produce`, `consume` and `bench`: the broker's address, the SDK client, hints for its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import click

import anabranch
from anabranch.cli.admin.verb import ENV_TOKEN, ENV_TRUST, option, setting, token_of
from anabranch.cli.errors import Interrupted
from anabranch.cli.traffic.interruption import Interruption
from anabranch.cli.traffic.sender import Sent
from anabranch.client import Client, Tls
from anabranch.client.async_resource import AsyncResource
from anabranch.model.errors import Error

DEFAULT_URL = "pulsar://localhost:6650"
ENV_URL = "ANABRANCH_SERVICE_URL"
ANSWER_SECONDS = 10.0  # deadline for a broker that does not answer: a person is waiting
_NOBODY = "is the broker running? Its address is given with --url or ANABRANCH_SERVICE_URL"
_HINTS = {
    "timeout": _NOBODY,
    "unreachable": _NOBODY,
    "bad-service-url": f"it is like {DEFAULT_URL}",
    "authentication": "give a token with --token or ANABRANCH_TOKEN",
    "authorization": "the role of this token lacks the right",
    "topic-not-found": "create it with `anabranch admin topics create`",
    "consumer-busy": "another consumer holds this subscription; try --type shared",
    "producer-fenced": "another producer has the topic for itself",
    "topic-terminated": "the topic has ended; nothing can be added to it",
}
T = TypeVar("T")


class TrafficError(Error):
    """A failure of the SDK, for people. `hint` says what to do about it; empty when there is nothing to say."""

    def __init__(self, reason: str, code: str, hint: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a broker and who we are there."""

    url: str = DEFAULT_URL
    token: str | None = None
    trust_file: str | None = None

    def connect(self) -> AsyncResource[Client]:
        tls = None if self.trust_file is None else Tls(trust_file=self.trust_file)
        return anabranch.connect(self.url, token=self.token, tls=tls, operation_timeout=ANSWER_SECONDS)


def wire_options(command: click.Command) -> click.Command:
    command.params += [
        option(
            "--url",
            "--service-url",
            "url",
            metavar="URL",
            help=f"Where the broker is (default: ${ENV_URL} or {DEFAULT_URL}).",
        ),
        option("--token", metavar="TOKEN", help=f"A token, or file:PATH of one (default: ${ENV_TOKEN})."),
        option("--tls-trust-certs", metavar="FILE", help=f"For pulsar+ssl:// (default: ${ENV_TRUST})."),
        option("--json", "as_json", is_flag=True, help="As JSON, for programs."),
    ]
    return command


def access_of(context: click.Context) -> Access:
    return Access(
        setting(context, "url", ENV_URL) or DEFAULT_URL,
        token_of(setting(context, "token", ENV_TOKEN)),
        setting(context, "tls_trust_certs", ENV_TRUST),
    )


def with_count(error: TrafficError, sent: Sent) -> TrafficError:
    """The failure of a command that had sent something: it also says how much."""
    return TrafficError(f"{error.reason}; {sent}", error.code, error.hint) if sent.messages else error


def run(work: Callable[[], Coroutine[Any, Any, T]], interruption: Interruption) -> T:
    """Runs it; a failure comes with a hint. Interrupted: a signal came before the work began."""

    async def interruptible() -> T:
        interruption.cancels_this_task()
        return await work()

    try:
        with interruption.installed():
            return asyncio.run(interruptible())
    except asyncio.CancelledError as error:
        assert interruption.signal is not None, "nothing else cancels the command"
        raise Interrupted(interruption.signal, "the topic was not open yet") from error
    except TrafficError:
        raise
    except Error as error:
        raise TrafficError(error.reason, error.code, _HINTS.get(error.code, "")) from error
