"""`help()` of the admin client says what each call does, in the asyncio and in the blocking form."""

from __future__ import annotations

import inspect

import pytest

import anabranch.admin
import anabranch.admin.blocking


def groups(form: type) -> list[type]:
    """The classes of the groups of an admin client, such as `admin.topics`, and its own."""
    return [form, *(one for one in vars(inspect.getmodule(form)).values() if inspect.isclass(one) and is_group(one))]


def is_group(one: type) -> bool:
    return any(base.__name__ == "Group" for base in one.__mro__[1:])


@pytest.mark.parametrize("form", [anabranch.admin.Admin, anabranch.admin.blocking.BlockingAdmin])
def test_each_public_call_has_a_docstring(form: type) -> None:
    found = groups(form)
    assert len(found) >= 10
    silent = [
        f"{one.__name__}.{name}"
        for one in found
        for name, member in vars(one).items()
        if not name.startswith("_")
        and (callable(member) or isinstance(member, property))
        and not inspect.getdoc(member)
    ]
    assert silent == []
