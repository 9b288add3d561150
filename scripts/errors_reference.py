"""Prints docs/reference/errors.md: every error that the SDK and the admin client raise, from the classes themselves.

python -m scripts.errors_reference > docs/reference/errors.md       # a test compares them
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import anabranch.admin
import anabranch.client
import anabranch.model.errors
import anabranch.model.names
from anabranch.model.errors import Error

HEAD = """# Errors

Everything the SDK raises derives from `anabranch.Error` and has

| attribute | meaning |
|---|---|
| `code` | a short name that never changes; the same on the wire, in REST (field `error`) and on the command line |
| `retryable` | whether the same call may succeed later; the SDK's retries follow it |
| `reason` | one line of text; never a token, a password or a message's content |

The SDK retries what is temporary: a broker that restarts, a topic that moves, a segment that is split or merged
is never an error of the application (`tests/e2e/sdk/test_sdk.py`). A call that exceeds its deadline raises `timeout`
with the last reason. `scripts/errors_reference.py` generates this page from the classes, and
`tests/unit/project/docs/test_errors.py` checks it. For operators: [troubleshooting](../operations/troubleshooting.md).
"""
CLIENT = """
## Client

In `anabranch.client.errors`, a few in the module that raises them. Subclasses of `Refused` are answers of the broker,
with `server_error`, its number on the wire.
"""
ADMIN = """
## Admin client

In `anabranch.admin.errors`. `Refused` has the HTTP `status` and the broker's `code`; it is retryable for 429,
503 and 504. All have a `hint`.
"""
NAMES = """
## Names and values

In `anabranch.model`; raised before a request is sent.
"""
ADVICE = (
    (
        "`timeout` from `send`",
        "the message may be stored or not; the text names the last reason (a full disk, an unreachable broker). With a "
        "producer `name` and deduplication switched on, send it again with the same sequence id",
    ),
    (
        "`queue-full` from `send_nowait`",
        "more is pending than `pending_bytes_max`; `await producer.send(…)` waits instead",
    ),
    ("`topic-not-found` from `send` or `receive`", "the topic was deleted; create it again, or close the client"),
    ("`consumer-replaced` from `receive`", "another consumer has the same `name`; give each a different one"),
    ("`message-too-large`", "`chunking=Chunking()`, or compress"),
    ("`schema-mismatch` from `send`", "the value does not fit `schema=`; the text names the field"),
    (
        "`schema-mismatch` from `message.value`",
        "written by another program: `message.data` has the bytes; `ack` it or use a dead-letter topic",
    ),
    ("`producer-busy`, `consumer-busy` when opening", "another client uses the name or the subscription"),
    ("`authentication`", "the token is missing, wrong or expired; `token=` also takes a function"),
    ("`credentials`", "the function that provides the token failed; it is retried with backoff"),
    (
        "`tls`, `wrong-port`, `token-unreadable`",
        "the text names the address or the file. `connect` and opening fail at once. What is open already "
        "reconnects with backoff, because an operator may replace the file or the certificate",
    ),
    (
        "`decryption-failed` from `receive`",
        "the text names the keys; give one with `decryption=` and open the consumer again",
    ),
    ("`unusable-key`", "the text names the key of `encryption=` or `decryption=`, and what is wrong with it"),
    ("`closed` from `receive`", "the consumer was closed, by you or with its client"),
)


def errors_of(*modules: ModuleType) -> list[type[Error]]:
    """Errors that these modules define; of a package, those of all modules below it."""
    found: set[type[Error]] = set()
    for module in modules:
        inside = pkgutil.walk_packages(module.__path__, f"{module.__name__}.") if hasattr(module, "__path__") else ()
        for one in (module, *(importlib.import_module(info.name) for info in inside)):
            classes = (cls for _, cls in inspect.getmembers(one, inspect.isclass) if issubclass(cls, Error))
            found |= {cls for cls in classes if cls.__module__ == one.__name__ and cls is not Error}
    return sorted(found, key=lambda cls: (cls.code, cls.__name__))


def table(*modules: ModuleType) -> str:
    rows = [(cls.code, cls.__name__, cls.retryable, _first_line(cls)) for cls in errors_of(*modules)]
    lines = ["| code | error | retryable | when |", "|---|---|---|---|"]
    lines += [f"| `{code}` | `{name}` | {'yes' if again else 'no'} | {when} |" for code, name, again, when in rows]
    return "\n".join(lines) + "\n"


def _first_line(cls: type[Error]) -> str:
    text = inspect.cleandoc(cls.__doc__ or "")
    return " ".join(text.partition("\n\n")[0].split())


def advice() -> str:
    rows = "\n".join(f"| {seen} | {usually} |" for seen, usually in ADVICE)
    return f"\n## What to do\n\n| error | usual cause and remedy |\n|---|---|\n{rows}\n"


def page() -> str:
    client = table(anabranch.client)
    names = table(anabranch.model.errors, anabranch.model.names)
    return "".join((HEAD, CLIENT, "\n", client, ADMIN, "\n", table(anabranch.admin), NAMES, "\n", names, advice()))


if __name__ == "__main__":
    print(page(), end="")
