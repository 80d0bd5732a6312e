"""`herdsman key create`, `list` and `revoke`: the keys of the clients of `herdsman gateway`. See also `rotate_engine`.

Each key is a Secret with the key's hash (`gateway.access.key_secrets`). The gateways follow the Secrets, so a key
works, or no longer works, within seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import typer

from automation.cli.dry_run import DryRun, client_of, end_dry_run
from automation.cli.duration_argument import duration_s
from automation.cli.output import OutputFormat, age_text, complain, duration_text, print_json, print_table, say
from automation.cli.rotate_engine import rotate_engine
from gateway.access import key_secrets
from gateway.access.caller import Caller
from gateway.access.key_limits import KeyLimits
from gateway.access.key_secrets import KEYS_NAMESPACE, SecretUnreadable, key_of, secret_name, secret_of
from gateway.access.keys import Key, new_key
from gateway.accounting.limits import Limit, Unit
from gateway.price import NANO_USD_PER_USD, usd
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, KubeError, NotFound
from kubeapi.json_types import Json
from program.dialects.annotation_values import is_name

FIELD_MANAGER = "herdsman-cli"

app = typer.Typer(no_args_is_help=True)
app.command("rotate-engine")(rotate_engine)

Namespace = Annotated[str, typer.Option("--keys-namespace", help="Namespace of the keys, as of the gateway.")]
Kubeconfig = Annotated[str | None, typer.Option(help="Path of a kubeconfig.")]
Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key, as in ci or alice.laptop.")],
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="Allow this model: a name of it, or a pattern as in 'prod/*'. May be repeated.",
            show_default="all models",
        ),
    ] = None,
    team: Annotated[str, typer.Option(help="Team that the key belongs to.", show_default="none")] = "",
    expires: Annotated[
        str | None, typer.Option(help="Time after which the key ends, as in 12h or 90d.", show_default="never")
    ] = None,
    rpm: Annotated[int | None, typer.Option(min=1, help="Most requests a minute.", show_default="no limit")] = None,
    tpm: Annotated[
        int | None, typer.Option(min=1, help="Most tokens a minute, of prompts and answers.", show_default="no limit")
    ] = None,
    budget_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens in each --budget-window.", show_default="no limit")
    ] = None,
    budget_usd: Annotated[
        str | None,
        typer.Option(
            help="Most US dollars in each --budget-window, by the annotation `herdsman.dev/usd-per-million-tokens`.",
            show_default="no limit",
        ),
    ] = None,
    budget_window: Annotated[str, typer.Option(help="Period of the budgets, as in 24h or 30d.")] = "30d",
    namespace: Namespace = KEYS_NAMESPACE,
    output: Output = OutputFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """Make a key and print it. It is shown only now: the cluster keeps its hash.

    The key is the only text on stdout.
    """
    if not is_name(name):
        raise typer.BadParameter(f"`{name}` is not a name of lower-case letters, digits, `-` and `.`")
    if team and not is_name(team):
        raise typer.BadParameter(f"--team: `{team}` is not a name of lower-case letters, digits, `-` and `.`")
    expires_s = time.time() + duration_s(expires, "--expires") if expires is not None else None
    limits = KeyLimits(
        rpm,
        tpm,
        budget_tokens,
        _nano_usd(budget_usd) if budget_usd is not None else None,
        duration_s(budget_window, "--budget-window"),
        int(time.time()),
    )
    key_id, text = new_key()
    caller = Caller(key_id, name, team, tuple(models or ()), limits.limits(key_id))
    secret = secret_of(text, caller, expires_s, limits)
    with _errors(namespace):
        client = client_of(kubeconfig, dry_run=dry_run)
        if any(key.caller.name == name for _, key in _keys(client, namespace) if key is not None):
            complain(
                f"a key named `{name}` exists",
                hint=f"revoke it with `herdsman key revoke {name}`, or choose another name",
            )
            raise typer.Exit(1)
        try:
            client.get(kinds.NAMESPACES, None, namespace)
        except NotFound:
            metadata = {"name": namespace}
            client.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        client.create(kinds.SECRETS, namespace, secret, field_manager=FIELD_MANAGER)
    if dry_run:
        end_dry_run(client)
    if output is OutputFormat.JSON:
        print_json({**_shown(Key(caller, "", expires_s)), "key": text})
        return
    say(text)
    say(f"Key `{name}` has the id {key_id}. It is shown only now.", err=True)


@app.command("list")
def list_keys(
    namespace: Namespace = KEYS_NAMESPACE, output: Output = OutputFormat.TABLE, kubeconfig: Kubeconfig = None
) -> None:
    """List the keys, without their text."""
    with _errors(namespace):
        found = _keys(KubeClient.default(kubeconfig), namespace)
    if output is OutputFormat.JSON:
        print_json([_shown(key) if key is not None else _unreadable(secret) for secret, key in found])
        return
    now = datetime.now(UTC)
    rows = [_row(secret, key, now) for secret, key in found]
    print_table(("NAME", "ID", "STATE", "TEAM", "MODELS", "LIMITS", "EXPIRES", "AGE"), sorted(rows), phase_column=2)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or id of the key.")],
    namespace: Namespace = KEYS_NAMESPACE,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """Revoke a key. Gateways refuse it within seconds; answers in progress go on."""
    with _errors(namespace):
        client = client_of(kubeconfig, dry_run=dry_run)
        found = [secret for secret, key in _keys(client, namespace) if name in _names(secret, key)]
        if not found:
            complain(f"no key in namespace `{namespace}` has the name or id `{name}`", hint="see `herdsman key list`")
            raise typer.Exit(1)
        if len(found) > 1:
            complain(f"{len(found)} keys have the name `{name}`", hint="give the id that `herdsman key list` shows")
            raise typer.Exit(1)
        client.delete(kinds.SECRETS, namespace, found[0]["metadata"]["name"])
    if dry_run:
        end_dry_run(client)
    say(f"Revoked key `{name}`")


def _keys(client: KubeClient, namespace: str) -> list[tuple[Json, Key | None]]:
    """Return the Secrets of keys, each with its key; None for an unreadable one."""
    found: list[tuple[Json, Key | None]] = []
    for secret in client.list(kinds.SECRETS, namespace, label_selector=key_secrets.SELECTOR)["items"]:
        try:
            found.append((secret, key_of(secret)))
        except SecretUnreadable:
            found.append((secret, None))
    return found


def _id(secret: Json) -> str:
    text: str = secret["metadata"]["name"]
    return text.removeprefix(secret_name(""))


def _names(secret: Json, key: Key | None) -> tuple[str, ...]:
    return (_id(secret), key.caller.name) if key is not None else (_id(secret),)


def _shown(key: Key) -> dict[str, Any]:
    caller = key.caller
    return {
        "name": caller.name,
        "id": caller.key_id,
        "state": _state(key),
        "team": caller.team,
        "models": list(caller.models),
        "limits": [_limit(each) for each in caller.limits],
        "expires": _stamp(key.expires_s) if key.expires_s is not None else None,
    }


def _unreadable(secret: Json) -> dict[str, Any]:
    return {
        "name": "",
        "id": _id(secret),
        "state": "unreadable",
        "team": "",
        "models": [],
        "limits": [],
        "expires": None,
    }


def _row(secret: Json, key: Key | None, now: datetime) -> tuple[str, ...]:
    shown = _shown(key) if key is not None else _unreadable(secret)
    models, limits = ", ".join(shown["models"]) or "all", ", ".join(shown["limits"]) or "none"
    expires, age = shown["expires"] or "never", age_text(secret["metadata"], now=now)
    return (shown["name"], shown["id"], shown["state"], shown["team"], models, limits, expires, age)


def _limit(limit: Limit) -> str:
    """Return a limit as text, as in `60 requests/m` or `5 USD/30d`."""
    if limit.unit is Unit.NANO_USD:
        amount = f"{Decimal(limit.maximum) / NANO_USD_PER_USD:f} USD"
    else:
        amount = f"{limit.maximum} {limit.unit}"
    return f"{amount}/{duration_text(limit.window_s) if limit.is_budget else 'm'}"


def _nano_usd(text: str) -> int:
    try:
        amount = usd(text)
    except ValueError as error:
        raise typer.BadParameter(f"--budget-usd: {error}") from None
    if not amount:
        raise typer.BadParameter("--budget-usd is not more than 0")
    return amount


def _state(key: Key) -> str:
    return "expired" if key.expires_s is not None and key.expires_s <= time.time() else "ok"


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


@contextlib.contextmanager
def _errors(namespace: str) -> Iterator[None]:
    """Report errors of the API server, and end the command."""
    try:
        yield
    except Forbidden as error:
        hint = f"you must be allowed to list, create and delete Secrets in namespace `{namespace}`"
        complain(str(error), hint=hint)
        raise typer.Exit(1) from None
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
