"""Options that every job of `anabranch spark` gets from its flags. No Spark is started."""

from __future__ import annotations

import click
from click.testing import CliRunner

from anabranch.cli.spark import _common, _Job, spark


def asked(*arguments: str) -> _Job:
    found: list[_Job] = []

    @click.command()
    @click.argument("topic")
    @_common
    def job_of(topic: str, job: _Job) -> None:
        assert topic == "t"
        found.append(job)

    outcome = CliRunner().invoke(job_of, ["t", *arguments], catch_exceptions=False)
    assert outcome.exit_code == 0
    return found[0]


def test_without_flags() -> None:
    assert asked() == _Job("pulsar://127.0.0.1:6650", None, None, None, verbose=False, as_json=False)
    assert asked().options == {}


def test_flags_with_a_secret() -> None:
    job = asked("--service-url", "pulsar://b:1", "--token", "secret", "--master", "local[2]", "--verbose", "--json")
    assert job == _Job("pulsar://b:1", None, "secret", "local[2]", verbose=True, as_json=True)
    assert job.options == {"client.token": "secret"}
    assert "secret" not in repr(job)


def test_admin_url_of_an_apache_pulsar_cluster() -> None:
    job = asked("--admin-url", "http://b:8080", "--token", "secret")
    assert job.options == {"client.token": "secret", "adminUrl": "http://b:8080"}
    assert job.credentials == {"client.token": "secret"}


def test_every_job_has_them_and_its_own_help() -> None:
    assert set(spark.commands) == {"copy", "audit", "stats", "simulate"}
    for name, command in spark.commands.items():
        flags = {flag for option in command.params for flag in option.opts}
        assert {"--service-url", "--admin-url", "--token", "--master", "--verbose", "--json"} <= flags
        assert command.help, name
