"""Named connections in a file of the user: `$XDG_CONFIG_HOME/anabranch/contexts.toml`, readable by its owner only.

    current = "prod"
    previous = "local"

    [contexts.prod]
    admin_url = "https://prod.example.com:8443"
    token = "file:/run/secrets/token"

A context gives what neither an option nor the environment gives. `ANABRANCH_CONTEXT` chooses one for a single command.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.model.errors import Error

ENV_CONTEXT = "ANABRANCH_CONTEXT"
FIELDS = ("admin_url", "url", "token", "tls_trust_certs")


class BadContexts(Error):
    """The file of contexts is not readable, not TOML, or others may read it."""

    code = "bad-contexts"


class NoSuchContext(Error):
    """No context has the name."""

    code = "no-such-context"


@dataclass(frozen=True, slots=True)
class Contexts:
    current: str = ""
    previous: str = ""
    by_name: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def named(self, name: str) -> Mapping[str, str]:
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise NoSuchContext(f"there is no context {name}; known: {known}")
        return self.by_name[name]

    def using(self, name: str) -> Contexts:
        """`-` is the previous one."""
        wanted = self.previous if name == "-" else name
        if not wanted:
            raise NoSuchContext("no context was in use before")
        self.named(wanted)
        return Contexts(wanted, self.current or self.previous, self.by_name)

    def adding(self, name: str, values: Mapping[str, str]) -> Contexts:
        """Replaces one of that name. The first context is in use at once."""
        return Contexts(self.current or name, self.previous, {**self.by_name, name: dict(values)})

    def removing(self, name: str) -> Contexts:
        self.named(name)
        left = {one: values for one, values in self.by_name.items() if one != name}
        return Contexts(
            "" if self.current == name else self.current, "" if self.previous == name else self.previous, left
        )

    def dump(self) -> str:
        lines = [f"current = {json.dumps(self.current)}", f"previous = {json.dumps(self.previous)}"]
        for name, values in sorted(self.by_name.items()):
            lines += ["", f"[contexts.{json.dumps(name)}]", *(f"{key} = {json.dumps(values[key])}" for key in values)]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> Contexts:
        """Raises BadContexts."""
        try:
            tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise BadContexts(f"the file of contexts is not TOML: {error}") from error
        found: dict[str, dict[str, str]] = {}
        contexts = tree.get("contexts", {})
        for name, values in contexts.items() if isinstance(contexts, dict) else ():
            if not isinstance(values, dict) or not all(isinstance(one, str) for one in values.values()):
                raise BadContexts(f"context {name} must be a table of texts")
            if unknown := sorted(set(values) - set(FIELDS)):
                raise BadContexts(f"context {name} has unknown fields: {', '.join(unknown)}")
            found[name] = dict(values)
        return cls(str(tree.get("current", "")), str(tree.get("previous", "")), found)


def path_of(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", ""), ".config")
    return Path(base) / "anabranch" / "contexts.toml"


def load(path: Path) -> Contexts:
    """Without a file: no contexts. Raises BadContexts, also if others may read the file, because it may hold tokens."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise BadContexts(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadContexts(f"{path} may be read by others, and it may hold tokens: chmod 600 {path}")
    return Contexts.parse(text)


def save(path: Path, contexts: Contexts) -> None:
    """Replaces the file as a whole; other users cannot read it at any moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "w", encoding="utf-8") as new:
            new.write(contexts.dump())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def in_use(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The values of the context in use; empty without one."""
    wanted = environment.get(ENV_CONTEXT, "")
    path = path_of(environment)
    if not wanted and not path.exists():
        return {}
    contexts = load(path)
    name = wanted or contexts.current
    return contexts.named(name) if name else {}
