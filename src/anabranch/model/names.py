"""Names of topics, namespaces, subscriptions and segments: parsing, validation, spelling.

    x                                   -> persistent://public/default/x
    t/n/x                               -> persistent://t/n/x
    persistent://t/n/a/b                -> local name "a/b" (Pulsar refuses it, stock clients send it, so we serve it)
    topic://t/n/a/b                     -> scalable topic "a/b"
    segment://t/n/a/b/0000-7fff-1       -> segment 1 of topic://t/n/a/b

Names are compared and sent unencoded; `encoded_local` is the spelling for storage and REST paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from urllib.parse import quote_plus, unquote_plus

from anabranch.model.errors import BadName

NAME_BYTES_MAX = 1024
PARTITION_MAX = (1 << 31) - 1
HASH_MAX = 0xFFFF

_PART = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_HEX = re.compile(r"[0-9a-fA-F]{1,8}")
_DECIMAL = re.compile(r"[0-9]{1,19}")


class Domain(StrEnum):
    PERSISTENT = "persistent"
    NON_PERSISTENT = "non-persistent"
    TOPIC = "topic"
    SEGMENT = "segment"


@dataclass(frozen=True, slots=True)
class SegmentDescriptor:
    """The last component of a `segment://` name: an inclusive range of the 16-bit ring and the segment's id."""

    start: int
    end: int
    segment_id: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= HASH_MAX or self.segment_id < 0:
            raise BadName(f"segment range {self.start:x}-{self.end:x} (id {self.segment_id}) is not within 0-ffff")

    @classmethod
    def parse(cls, text: str) -> SegmentDescriptor:
        """Any hex width and case is accepted; `str()` gives the canonical spelling."""
        parts = text.split("-")
        if (
            len(parts) != 3
            or not _HEX.fullmatch(parts[0])
            or not _HEX.fullmatch(parts[1])
            or not _DECIMAL.fullmatch(parts[2])
        ):
            raise BadName(f"{_shown(text)} is not a segment descriptor like 0000-7fff-1")
        return cls(int(parts[0], 16), int(parts[1], 16), int(parts[2]))

    def __str__(self) -> str:
        return f"{self.start:04x}-{self.end:04x}-{self.segment_id}"


@dataclass(frozen=True, slots=True)
class TopicName:
    """The full name of one topic. Build it with `parse`, `from_parts` or `from_rest`, which validate it."""

    domain: Domain
    tenant: str
    namespace: str
    local: str
    partition_index: int = field(init=False, compare=False, repr=False)  # -1: not a partition
    _text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        index = -1
        if self.domain in (Domain.PERSISTENT, Domain.NON_PERSISTENT):
            match = _PARTITION.fullmatch(self.local)
            if match and int(match[2]) <= PARTITION_MAX:
                index = int(match[2])
        object.__setattr__(self, "partition_index", index)
        object.__setattr__(self, "_text", f"{self.domain.value}://{self.tenant}/{self.namespace}/{self.local}")

    @staticmethod
    def parse(text: str) -> TopicName:
        """The topic that `text` names; raises BadName with a readable message."""
        return _parse(text)

    @staticmethod
    def from_parts(domain: str, tenant: str, namespace: str, local: str) -> TopicName:
        """The same checks as `parse`, for parts that arrive separately."""
        return _from_parts(domain, tenant, namespace, local)

    @staticmethod
    def from_rest(domain: str, tenant: str, namespace: str, encoded: str) -> TopicName:
        """`encoded` is the local name as spelled in a URL path (%XX, and + for a space)."""
        try:
            local = unquote_plus(encoded, errors="strict")
        except UnicodeDecodeError as cause:
            raise BadName(f"{_shown(encoded)} does not decode to UTF-8") from cause
        return _from_parts(domain, tenant, namespace, local)

    def __str__(self) -> str:
        return self._text

    @property
    def namespace_path(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    @property
    def is_persistent(self) -> bool:
        return self.domain is not Domain.NON_PERSISTENT

    @property
    def base(self) -> TopicName:
        """The partitioned topic of a partition; the topic itself otherwise."""
        if self.partition_index < 0:
            return self
        local = self.local[: self.local.rindex("-partition-")]
        return TopicName(self.domain, self.tenant, self.namespace, local)

    def partition(self, index: int) -> TopicName:
        """Partition `index` of this partitioned topic."""
        assert 0 <= index <= PARTITION_MAX
        assert self.domain in (Domain.PERSISTENT, Domain.NON_PERSISTENT)
        return TopicName(self.domain, self.tenant, self.namespace, f"{self.local}-partition-{index}")

    @property
    def encoded_local(self) -> str:
        """Form-URL-encoded local name, as Java spells it; a segment's descriptor stays a separate path component."""
        if self.domain is Domain.SEGMENT:
            topic, _, descriptor = self.local.rpartition("/")
            return f"{encode_component(topic)}/{descriptor}"
        return encode_component(self.local)

    @property
    def segment(self) -> SegmentDescriptor | None:
        """Range and id of a `segment://` name; None otherwise."""
        if self.domain is not Domain.SEGMENT:
            return None
        return SegmentDescriptor.parse(self.local.rpartition("/")[2])

    @property
    def scalable(self) -> TopicName:
        """The `topic://` name with the same path: parent of a segment, or scalable topic of the same name as a regular
        one.
        """
        if self.domain is Domain.TOPIC:
            return self
        local = self.local.rpartition("/")[0] if self.domain is Domain.SEGMENT else self.base.local
        return TopicName(Domain.TOPIC, self.tenant, self.namespace, local)

    def segment_name(self, descriptor: SegmentDescriptor) -> TopicName:
        """The `segment://` topic of one segment of this scalable topic."""
        assert self.domain is Domain.TOPIC
        return TopicName(Domain.SEGMENT, self.tenant, self.namespace, f"{self.local}/{descriptor}")


def encode_component(text: str) -> str:
    """Java's form-URL-encoding: space becomes +, `*-_.` and ASCII letters and digits stay, all else is %XX."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def parse_namespace(text: str) -> tuple[str, str]:
    """`tenant/namespace` as its two parts, checked."""
    tenant, slash, namespace = text.partition("/")
    if not slash:
        raise BadName(f"{_shown(text)} is not a namespace like public/default")
    check_tenant(tenant)
    check_namespace(namespace)
    return tenant, namespace


def check_tenant(text: str) -> str:
    return _check_part("tenant", text)


def check_namespace(text: str) -> str:
    return _check_part("namespace", text)


def check_subscription_name(text: str) -> str:
    """Returns the name unchanged. It must not be blank, contain control characters or be too long."""
    return _check_text("subscription", text)


@lru_cache(maxsize=16_384)
def _parse(text: str) -> TopicName:
    _check_text("topic", text)
    domain, scheme, path = text.partition("://")
    if not scheme:
        parts = text.split("/")
        if len(parts) == 1:
            return _from_parts(Domain.PERSISTENT, "public", "default", text)
        if len(parts) == 3:
            return _from_parts(Domain.PERSISTENT, *parts)
        raise BadName(f"{_shown(text)} is neither a short topic name like x nor a path like tenant/namespace/x")
    parts = path.split("/", 2)
    if len(parts) != 3:
        raise BadName(f"{_shown(text)} is incomplete: expected {domain}://tenant/namespace/topic")
    return _from_parts(domain, *parts)


def _from_parts(domain: str, tenant: str, namespace: str, local: str) -> TopicName:
    try:
        known = Domain(domain.lower())
    except ValueError:
        raise BadName(f"unknown domain {_shown(domain)}: one of {', '.join(Domain)}") from None
    check_tenant(tenant)
    check_namespace(namespace)
    _check_text("topic", local)
    if "" in local.split("/"):
        raise BadName(f"topic name {_shown(local)} has an empty component")
    if local in (".", ".."):
        raise BadName(f"{local} is not a topic name")
    if known is Domain.SEGMENT:
        topic, slash, descriptor = local.rpartition("/")
        if not slash:
            raise BadName(
                f"segment {_shown(local)} has no topic: expected segment://tenant/namespace/topic/0000-ffff-0"
            )
        local = f"{topic}/{SegmentDescriptor.parse(descriptor)}"
    name = TopicName(known, tenant, namespace, local)
    if len(str(name).encode()) > NAME_BYTES_MAX:
        raise BadName(f"topic name {_shown(local)} is longer than {NAME_BYTES_MAX} bytes")
    return name


def _check_part(what: str, text: str) -> str:
    if not _PART.fullmatch(text) or text in (".", "..") or len(text) > NAME_BYTES_MAX:
        raise BadName(f"{what} {_shown(text)} may only have letters, digits and - = : . _ and may not be empty")
    return text


def _check_text(what: str, text: str) -> str:
    if not text or text.isspace():
        raise BadName(f"{what} name is blank")
    if text != text.strip():
        raise BadName(f"{what} name {_shown(text)} begins or ends with a space")
    if _CONTROL.search(text):
        raise BadName(f"{what} name {_shown(text)} has a control character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as cause:
        raise BadName(f"{what} name {_shown(text)} is not valid Unicode") from cause
    if size > NAME_BYTES_MAX:
        raise BadName(f"{what} name {_shown(text)} is longer than {NAME_BYTES_MAX} bytes")
    return text


def _shown(text: str) -> str:
    """The text for an error message: quoted, printable, short."""
    short = text if len(text) <= 80 else text[:77] + "..."
    return repr(short) if short.isprintable() else ascii(short)
