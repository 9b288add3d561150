"""Prints docs/reference/errors.md: every error that the SDK and the admin client raise, from the classes themselves.

python -m scripts.errors_reference > docs/reference/errors.md       # a test holds the page to this
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
| `code` | a short name that does not change between versions; the same on the wire, in REST and on the command line |
| `retryable` | has the same call, made again later, a chance? The SDK's own retries follow it |
| `reason` | one line for people; never a token, a password or a message's content |

What the SDK can wait out it waits out: a broker that restarts, a topic that moves, a segment that is split or merged
is never an error of the application (`tests/e2e/sdk/test_sdk.py`). A call that runs out of time says `timeout`, and
what the last reason was. `scripts/errors_reference.py` makes this page from the classes, and
`tests/unit/project/docs/test_errors.py` checks that.
"""
CLIENT = """
## Of the client

In `anabranch.client.errors`, a few beside what raises them. Subclasses of `Refused` are answers of the broker and have
`server_error`, its number on the wire.
"""
ADMIN = """
## Of the admin client

In `anabranch.admin.errors`. `Refused` has the `status` of HTTP and the broker's own `code`; it is retryable for 429,
503 and 504. All have a `hint` for people.
"""
NAMES = """
## Of names and values

In `anabranch.model`; raised before anybody is asked.
"""
ADVICE = (
    (
        "`timeout` from `send`",
        "the message may be stored or not. With a producer `name` and deduplication switched on, send it again with "
        "the same sequence id",
    ),
    (
        "`queue-full` from `send_nowait`",
        "more is waiting than `pending_bytes_max`: `await producer.send(…)` waits for room instead",
    ),
    ("`message-too-large`", "`chunking=Chunking()`, or compress"),
    ("`schema-mismatch` from `send`", "the value does not fit `schema=`; the text names the field"),
    (
        "`schema-mismatch` from `message.value`",
        "written by somebody else: `message.data` has the bytes; `ack` it or let it go to the dead letters",
    ),
    ("`producer-busy`, `consumer-busy` when opening", "somebody else has the name or the subscription"),
    ("`authentication`", "the token is missing, wrong or expired; `token=` takes a function, too"),
    ("`credentials`", "the function or file that gives the token failed; it is asked again with backoff"),
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
    return f"\n## What to do\n\n| you see | usually |\n|---|---|\n{rows}\n"


def page() -> str:
    client = table(anabranch.client)
    names = table(anabranch.model.errors, anabranch.model.names)
    return "".join((HEAD, CLIENT, "\n", client, ADMIN, "\n", table(anabranch.admin), NAMES, "\n", names, advice()))


if __name__ == "__main__":
    print(page(), end="")
