"""`anabranch token`: keys and tokens for `security.methods = ["token"]`, with the options of Pulsar's own tool.

The work is done in `anabranch.node.token_commands`, which is loaded when a command runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from anabranch.cli.lazy_group import SuggestingGroup
from anabranch.cli.param_types import seconds_of
from anabranch.runtime.clock import SystemClock

SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
PAIR_ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")


def pairs_of(texts: tuple[str, ...], option: str) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{option} {text}: is not like name=value")
        found[name] = value
    return found


@click.group(cls=SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"]})
def token() -> None:
    """Make keys and tokens, and check tokens.

    Keys and tokens have the formats of Apache Pulsar's own tool.
    """


@token.command("create-secret-key")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write here instead of printing.")
@click.option("--base64", "-b", "as_base64", is_flag=True, help="As base64 text instead of raw bytes.")
@click.option(
    "--signature-algorithm", "-a", type=click.Choice(SECRET_ALGORITHMS), default="HS256", help="What it is for."
)
def create_secret_key(output: Path | None, as_base64: bool, signature_algorithm: str) -> int:
    """Make a secret: the same key signs and checks tokens."""
    from anabranch.node import token_commands as tokens

    made = tokens.create_secret_key(signature_algorithm, as_base64=as_base64)
    if output is None:
        sys.stdout.buffer.write(made)
        sys.stdout.buffer.flush()
    else:
        tokens.write_private(output, made)
    return 0


@token.command("create-key-pair")
@click.option("--output-private-key", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Signs.")
@click.option("--output-public-key", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Checks.")
@click.option(
    "--signature-algorithm", "-a", type=click.Choice(PAIR_ALGORITHMS), default="RS256", help="What it is for."
)
def create_key_pair(output_private_key: Path, output_public_key: Path, signature_algorithm: str) -> int:
    """Make a pair: the private key signs tokens, brokers need only the public one."""
    from anabranch.node import token_commands as tokens

    tokens.create_key_pair(signature_algorithm, output_private_key, output_public_key)
    return 0


@token.command("create", context_settings={"help_option_names": ["--help"]})  # -h is --headers, as in Pulsar's tool
@click.option("--subject", "-s", required=True, metavar="ROLE", help="The role that the token gives.")
@click.option("--secret-key", metavar="KEY", help="File, file: or data: URL of the secret.")
@click.option("--private-key", metavar="KEY", help="File, file: or data: URL of the private key.")
@click.option("--expiry-time", "-e", metavar="TIME", help="How long it is valid: 30m, 12h, 7d, 1y (default: for ever).")
@click.option(
    "--signature-algorithm", "-a", type=click.Choice(SECRET_ALGORITHMS + PAIR_ALGORITHMS), help="Default: by the key."
)
@click.option("--claim", "-c", "claims", multiple=True, metavar="NAME=VALUE", help="A further claim.")
@click.option("--headers", "-h", multiple=True, metavar="NAME=VALUE", help="A further header.")
def create(
    subject: str,
    secret_key: str | None,
    private_key: str | None,
    expiry_time: str | None,
    signature_algorithm: str | None,
    claims: tuple[str, ...],
    headers: tuple[str, ...],
) -> int:
    """Make a token and print it."""
    from anabranch.node import token_commands as tokens

    expires_ms = None if expiry_time is None else SystemClock().now_ms() + seconds_of(expiry_time) * 1000
    made = tokens.create_token(
        subject,
        secret_key=secret_key,
        private_key=private_key,
        algorithm=signature_algorithm,
        expires_ms=expires_ms,
        claims=pairs_of(claims, "--claim"),
        headers=pairs_of(headers, "--headers"),
    )
    click.echo(made)
    return 0


@token.command("validate")
@click.argument("text", metavar="[TOKEN]", required=False)
@click.option("--secret-key", metavar="KEY", help="File, file: or data: URL of the secret.")
@click.option("--public-key", metavar="KEY", help="File, file: or data: URL of the public key.")
@click.option("--token-file", "-f", type=click.Path(path_type=Path), metavar="FILE", help="Read the token from here.")
@click.option("--stdin", "-i", "from_stdin", is_flag=True, help="Read the token from standard input.")
def validate(
    text: str | None, secret_key: str | None, public_key: str | None, token_file: Path | None, from_stdin: bool
) -> int:
    """Check a token and print its claims; exits with 1 when it is not valid."""
    from anabranch.node import token_commands as tokens

    given = [source for source in (text, token_file, from_stdin or None) if source is not None]
    if len(given) != 1:
        raise click.UsageError("give the token as an argument, with --token-file or with --stdin")
    if token_file is not None:
        text = token_file.read_text(encoding="utf-8")
    elif from_stdin:
        text = sys.stdin.read()
    assert text is not None
    claims = tokens.validate_token(
        text.strip(), secret_key=secret_key, public_key=public_key, now_ms=SystemClock().now_ms()
    )
    click.echo(json.dumps(claims, ensure_ascii=False))
    return 0
