"""The topic that a request's path names. Knows which paths say its domain and which imply it."""

from __future__ import annotations

from anabranch.model.names import Domain, TopicName
from anabranch.rest.http_message import Request

_IMPLIED = (
    ("/admin/v2/scalable/", Domain.TOPIC),
    ("/admin/v2/segments/", Domain.TOPIC),  # they speak of a topic's segments; the topic is what is looked up
    ("", Domain.PERSISTENT),  # schemas
)


def topic_of(request: Request) -> TopicName:
    """Checked; raises BadName."""
    params = request.params
    domain = params.get("domain") or next(domain for start, domain in _IMPLIED if request.path.startswith(start))
    return TopicName.from_parts(domain, params["tenant"], params["namespace"], params["topic"])
