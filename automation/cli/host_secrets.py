"""`herdsman host grant-secret`: allow the agent of one host to read one Secret, and no other.

Registered by `host`. The command writes a Role and a RoleBinding with the caller's permissions: the API server refuses
to grant a permission that the caller lacks.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated

import typer
import yaml

from automation.cli.host_arguments import check_host_name
from automation.cli.output import complain, print_json, say
from automation.settings import SYSTEM_NAMESPACE
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden, KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired import keys
from program.dialects.annotation_values import is_name

FIELD_MANAGER = "herdsman-cli"
_LONGEST_NAME = 253


class GrantFormat(StrEnum):
    """The format of the printed objects."""

    TEXT = "text"
    YAML = "yaml"
    JSON = "json"


def grant_objects(host: str, namespace: str, secret: str, subject: Json) -> list[tuple[Kind, Json]]:
    """Build the Role that reads one Secret and its binding to the agent's identity."""
    name = f"herdsman-host-{host}-secret-{secret}"
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    metadata = {"name": name, "namespace": namespace, "labels": {naming.LABEL_HOST: host}}
    role = {
        "apiVersion": kinds.ROLES.api_version,
        "kind": kinds.ROLES.kind,
        "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": ["get"]}],
    }
    binding = {
        "apiVersion": kinds.ROLE_BINDINGS.api_version,
        "kind": kinds.ROLE_BINDINGS.kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kinds.ROLES.kind, "name": name},
        "subjects": [subject],
    }
    return [(kinds.ROLES, role), (kinds.ROLE_BINDINGS, binding)]


def grant_secret(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Name of the host.")],
    secret: Annotated[str, typer.Argument(metavar="NAMESPACE/SECRET", help="The Secret, in the services' namespace.")],
    service_account: Annotated[
        str | None,
        typer.Option(help="[NAMESPACE/]NAME of the agent's ServiceAccount.", show_default=f"{SYSTEM_NAMESPACE}/HOST"),
    ] = None,
    user: Annotated[str | None, typer.Option(help="The agent's user name, instead of a ServiceAccount.")] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke the grant.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the objects and write nothing.")] = False,
    output: Annotated[GrantFormat, typer.Option("-o", "--output", help="text, yaml or json.")] = GrantFormat.TEXT,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
) -> None:
    """Allow the agent of a host to read one Secret, for services that take a variable from it.

    Writes a Role that names the Secret and a RoleBinding with your permissions: you must be allowed to read the Secret
    and to write Roles in its namespace.
    """
    check_host_name(host)
    namespace, slash, name = secret.partition("/")
    if not slash or not keys.is_dns_label(namespace) or not is_name(name):
        raise typer.BadParameter(f"`{secret}` is not NAMESPACE/SECRET")
    objects = grant_objects(host, namespace, name, _subject(host, service_account, user))
    if dry_run or output is not GrantFormat.TEXT:
        _show([body for _, body in objects], GrantFormat.YAML if output is GrantFormat.TEXT else output)
    if dry_run:
        return
    try:
        client = KubeClient.default(kubeconfig)
        for kind, body in objects:
            if revoke:
                _delete(client, kind, body)
            else:
                client.apply(kind, namespace, body, field_manager=FIELD_MANAGER, force=True)
    except Forbidden as error:
        complain(
            str(error),
            hint=f"a user who may read the Secret and write Roles in namespace `{namespace}` must run this command",
        )
        raise typer.Exit(1) from None
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if output is GrantFormat.TEXT:
        done = "may not read" if revoke else "may read"
        say(f"Host `{host}` {done} Secret `{secret}` (Role and RoleBinding `{objects[0][1]['metadata']['name']}`)")


def _subject(host: str, service_account: str | None, user: str | None) -> Json:
    if service_account is not None and user is not None:
        raise typer.BadParameter("give one of --service-account and --user")
    if user is not None:
        return {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}
    namespace, _, name = (service_account or host).rpartition("/")
    if not is_name(name) or (namespace and not keys.is_dns_label(namespace)):
        raise typer.BadParameter(f"--service-account `{service_account}` is not [NAMESPACE/]NAME")
    return {"kind": "ServiceAccount", "namespace": namespace or SYSTEM_NAMESPACE, "name": name}


def _show(objects: list[Json], output: GrantFormat) -> None:
    if output is GrantFormat.JSON:
        print_json({"apiVersion": "v1", "kind": "List", "items": objects})
    else:
        say(yaml.safe_dump_all(objects, sort_keys=False, width=120), nl=False)


def _delete(client: KubeClient, kind: Kind, body: Json) -> None:
    try:
        client.delete(kind, body["metadata"]["namespace"], body["metadata"]["name"])
    except NotFound:
        return
