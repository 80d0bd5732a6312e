"""The embedded Kubernetes provider: Pulumi's ResourceProvider service over server-side apply.

Called by the Pulumi engine through `components.providers.plugin_server`. It serves the unmodified `pulumi_kubernetes`
SDK and plain `pulumi.CustomResource` with tokens such as `kubernetes:apps/v1:Deployment`. `kubernetes_calls` makes all
requests to the cluster. This module only translates: wire values to Python, verdicts to diffs, refusals to statuses.

One instance serves all stacks, programs and threads. It keeps no state of an engine. It ignores Cancel, because the
Cancel of one engine would stop the calls of all.
"""

# ruff: noqa: N802, ARG002 - names and arguments are those of Pulumi's gRPC service

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Callable
from typing import Any, Literal, NoReturn, TypeVar

import grpc
import structlog
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from components import naming
from components.providers import kubernetes_diff as diffs
from components.providers import kubernetes_objects as objects
from components.providers.ignored_objects import IgnoredFields
from components.providers.kubernetes_calls import KubernetesCalls
from components.providers.kubernetes_diff import Change
from components.providers.kubernetes_errors import Code, Refused
from components.providers.kubernetes_looks import Verdict
from components.providers.kubernetes_objects import Identity, NotSupported, Token
from components.providers.kubernetes_standing import standing
from components.providers.kubernetes_templates import as_made
from components.providers.kubernetes_waiting import Call
from components.providers.marshalling import (
    Properties,
    Unsupported,
    decode,
    decode_some,
    encode,
    has_unknown,
    marked_like,
    plain,
)
from components.providers.plugin_answers import DIFF_KINDS, PluginAnswers, abort
from kubeapi.client import KubeClient
from kubeapi.errors import KindNotServed
from kubeapi.json_types import Json

log = structlog.get_logger(__name__)

PACKAGE = "kubernetes"
FIELD_MANAGER = "herdsman"
_FALLBACK_VERSION = "4.34.2"
FORBIDDEN_CONFIG = ("kubeconfig", "context", "cluster", "namespace", "renderYamlToDirectory", "clusterIdentifier")
_PropertyDiff = provider_pb2.PropertyDiff
_OUTPUTS_FOR_DIFF = ("metadata", objects.FIELD_MANAGER_KEY)
_IDENTITY_PATHS: tuple[diffs.Path, ...] = (("metadata", "name"), ("metadata", "namespace"), ("kind",))

Request = TypeVar("Request")
Answer = TypeVar("Answer")


def _answering(
    method: Callable[[KubernetesProvider, Request, grpc.ServicerContext], Answer],
) -> Callable[[KubernetesProvider, Request, grpc.ServicerContext], Answer]:
    """Turn refusals into gRPC statuses. Any other exception is reported as a defect of the provider."""

    @functools.wraps(method)
    def answer(self: KubernetesProvider, request: Request, context: grpc.ServicerContext) -> Answer:
        try:
            return method(self, request, context)
        except Refused as refused:
            abort(context, grpc.StatusCode[refused.code.name], refused.message)
        except (NotSupported, Unsupported) as unsupported:
            abort(context, grpc.StatusCode.UNIMPLEMENTED, str(unsupported))
        except Exception as defect:
            log.exception("Failed to answer the engine", method=method.__name__)
            abort(
                context,
                grpc.StatusCode.ABORTED,
                f"defect in the embedded provider: {method.__name__}: {type(defect).__name__}",
            )

    return answer


class KubernetesProvider(PluginAnswers):
    """Serves all kinds that the API server serves.

    `verify`: look for drift even if no input changed. `remember`: the outputs that the state keeps of each object;
    `identity` is for programs that read no output, and makes each run of a large stack much faster. `ignored`: fields
    to leave to other clients when an object is taken over, for which the engine passes no `ignoreChanges`.
    `beside_loop`: the programs belong to people, so that objects of a loop are neither changed nor deleted.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        field_manager: str = FIELD_MANAGER,
        verify: bool = True,
        remember: Literal["all", "identity"] = "all",
        ignored: IgnoredFields | None = None,
        beside_loop: bool = False,
    ) -> None:
        self._calls = KubernetesCalls(client, field_manager=field_manager, ignored=ignored, beside_loop=beside_loop)
        self._settle(field_manager=field_manager, verify=verify, remember=remember)

    def _settle(
        self,
        *,
        field_manager: str = FIELD_MANAGER,
        verify: bool = True,
        remember: Literal["all", "identity"] = "all",
    ) -> None:
        super().__init__(sdk_version(), autonaming=True)
        self._field_manager = field_manager
        self._verify = verify
        self._remember = remember

    # The plugin itself

    def GetSchema(
        self, request: provider_pb2.GetSchemaRequest, context: grpc.ServicerContext
    ) -> provider_pb2.GetSchemaResponse:
        return provider_pb2.GetSchemaResponse(schema=json.dumps({"name": PACKAGE, "version": sdk_version()}))

    def CheckConfig(
        self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext
    ) -> provider_pb2.CheckResponse:
        """Refuse settings that select another cluster or other writes, because Herdsman works on one cluster only."""
        failures = [
            provider_pb2.CheckFailure(
                property=key,
                reason=f"the embedded provider works on the one cluster that Herdsman is connected to; remove `{key}` "
                "(give each object its metadata.namespace), or have the engine start providers itself, see "
                "`herdsman provider path`",
            )
            for key in FORBIDDEN_CONFIG
            if key in request.news.fields and request.news.fields[key].WhichOneof("kind") != "null_value"
        ]
        return provider_pb2.CheckResponse(inputs=request.news, failures=failures)

    @_answering
    def Invoke(self, request: provider_pb2.InvokeRequest, context: grpc.ServicerContext) -> provider_pb2.InvokeResponse:
        if request.tok != naming.STANDING_FUNCTION:
            raise Refused(Code.UNIMPLEMENTED, _unsupported_words(request.tok))
        found = standing(self._calls, plain(decode(request.args)))
        response = provider_pb2.InvokeResponse()
        # `return` is a keyword, so the field has no attribute syntax.
        getattr(response, "return").CopyFrom(encode(found))
        return response

    def Call(self, request: provider_pb2.CallRequest, context: grpc.ServicerContext) -> provider_pb2.CallResponse:
        self._refuse(context, request.tok)

    def Construct(
        self, request: provider_pb2.ConstructRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ConstructResponse:
        self._refuse(context, request.type)

    @staticmethod
    def _refuse(context: grpc.ServicerContext, token: str) -> NoReturn:
        abort(context, grpc.StatusCode.UNIMPLEMENTED, _unsupported_words(token))

    # Resources

    @_answering
    def Check(self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext) -> provider_pb2.CheckResponse:
        """Complete the inputs with apiVersion, kind, name and namespace, and mark a Secret's data as secret."""
        token = Token.parse(request.type)
        olds = decode(request.olds)
        inputs = as_made(objects.cleaned(decode(request.news)), olds)
        failures = []
        for key, value in (("apiVersion", token.api_version), ("kind", token.kind)):
            if plain(inputs.get(key)) not in (None, value):
                reason = f"`{plain(inputs[key])}` contradicts the type of the resource, `{value}`"
                failures.append(provider_pb2.CheckFailure(property=key, reason=reason))
        inputs = {**inputs, "apiVersion": token.api_version, "kind": token.kind}
        metadata = inputs.get("metadata", {})
        if isinstance(metadata, dict):
            inputs["metadata"], lacking = self._named(token, metadata, request)
            if lacking:
                failures.append(provider_pb2.CheckFailure(property="metadata", reason=lacking))
        elif not has_unknown(metadata):
            failures.append(provider_pb2.CheckFailure(property="metadata", reason="metadata is not an object"))
        return provider_pb2.CheckResponse(inputs=encode(objects.sealed(inputs, token)), failures=failures)

    def _named(
        self, token: Token, metadata: Properties, request: provider_pb2.CheckRequest
    ) -> tuple[Properties, str | None]:
        metadata = dict(metadata)
        if "name" not in metadata:
            old = plain(decode(request.olds)).get("metadata")
            old_name = old.get("name") if isinstance(old, dict) else None
            mode = provider_pb2.CheckRequest.AutonamingOptions.Mode
            if old_name:
                metadata["name"] = old_name
            elif request.HasField("autonaming") and request.autonaming.mode == mode.DISABLE:
                return metadata, "metadata.name is required: automatic naming is switched off"
            elif request.HasField("autonaming") and request.autonaming.proposed_name:
                metadata["name"] = request.autonaming.proposed_name
            else:
                prefix = metadata.pop("generateName", None)
                metadata["name"] = objects.auto_name(
                    request.name, request.randomSeed, prefix if isinstance(prefix, str) else None
                )
        metadata.pop("generateName", None)
        if not metadata.get("namespace"):
            metadata.pop("namespace", None)
            try:
                if self._calls.kind(token).namespaced:
                    metadata["namespace"] = objects.DEFAULT_NAMESPACE
            except KindNotServed:
                pass  # the same program may make the CRD; the create then sets the namespace
        return metadata, None

    @_answering
    def Diff(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        """Compare the inputs by path, then check in the cluster for drift, or whether a change needs a new object."""
        token = Token.parse(request.type)
        # The outputs contain the whole object and, beside it, its inputs.
        old_outputs = plain(decode_some(request.olds, _OUTPUTS_FOR_DIFF))
        inputs = decode(request.news)
        identity = _identity(old_outputs, request.id)
        wanted = objects.comparable(inputs, identity)
        is_same = request.news == request.old_inputs
        old = wanted if is_same else objects.comparable(decode(request.old_inputs), identity)
        uid = _uid(old_outputs)
        # After an import there may be no change to apply, but the object belongs to this resource.
        self._calls.remember(uid, request.urn)
        found = [
            Change(c.path, c.kind, replaces=any(diffs.touch(c.path, path) for path in _IDENTITY_PATHS))
            for c in (() if is_same else diffs.changes(old, wanted))
        ]
        if any(change.replaces for change in found):
            return _diff_answer(found, delete_first=False)
        if has_unknown(wanted):
            return _diff_answer(found)
        call, former = Call(token, inputs), objects.recorded_manager(old_outputs)
        if found and former is not None and former != self._field_manager and not _leaves_out(old, wanted, token):
            # The plugin that made the stack may write the same inputs differently: `1000m` as `1`, stringData as data.
            found = [] if self._calls.stands(call, identity, uid, former) else found
        if found:
            verdict = self._calls.try_out(call, identity, uid, old)
        elif self._verify:
            verdict = self._calls.verify(token, identity, uid, wanted, former=former)
        else:
            verdict = Verdict()
        judged = _judged(found, wanted, verdict, list(request.ignoreChanges))
        if not judged and self._remember == "all" and objects.INPUTS_KEY not in request.olds.fields:
            # A development version wrote the state without inputs. The update applies unchanged values and adds them.
            judged = [Change((objects.INPUTS_KEY,), diffs.Kind.ADD, in_inputs=False)]
        return _diff_answer(judged)

    @_answering
    def Create(self, request: provider_pb2.CreateRequest, context: grpc.ServicerContext) -> provider_pb2.CreateResponse:
        token, inputs = Token.parse(request.type), decode(request.properties)
        if request.preview and has_unknown(inputs):
            return provider_pb2.CreateResponse(properties=encode(objects.unknown_outputs(inputs, token)))
        call = Call(token, inputs, request.urn, request.preview, request.timeout, context.is_active)
        live = self._calls.create(call)
        if live is None:
            return provider_pb2.CreateResponse(properties=encode(objects.unknown_outputs(inputs, token)))
        if request.preview:
            planned = objects.planned_outputs(live, inputs, token, self._field_manager)
            return provider_pb2.CreateResponse(properties=encode(planned))
        outputs = self._outputs(live, inputs, token, self._field_manager)
        return provider_pb2.CreateResponse(id=Identity.of(live).id, properties=encode(outputs))

    @_answering
    def Update(self, request: provider_pb2.UpdateRequest, context: grpc.ServicerContext) -> provider_pb2.UpdateResponse:
        token, inputs = Token.parse(request.type), decode(request.news)
        if request.preview and has_unknown(inputs):
            return provider_pb2.UpdateResponse(properties=encode(objects.unknown_outputs(inputs, token)))
        old_outputs = plain(decode(request.olds))
        identity = _identity(old_outputs, request.id)
        settled = marked_like(objects.comparable(inputs, identity), inputs)
        live = self._calls.update(
            Call(token, settled, request.urn, request.preview, request.timeout, context.is_active),
            uid=_uid(old_outputs),
            old_inputs=plain(decode(request.old_inputs)),
            ignore_changes=request.ignoreChanges,
            former=objects.recorded_manager(old_outputs),
        )
        version = objects.recorded_version(old_outputs)
        shaped = (
            objects.unknown_outputs(inputs, token)
            if live is None
            else self._outputs(live, inputs, token, self._field_manager, version)
        )
        return provider_pb2.UpdateResponse(properties=encode(shaped))

    @_answering
    def Read(self, request: provider_pb2.ReadRequest, context: grpc.ServicerContext) -> provider_pb2.ReadResponse:
        """Read the live object, for a refresh (with the old inputs) or an import (with the id only)."""
        token = Token.parse(request.type)
        old_inputs, old_outputs = decode(request.inputs), plain(decode(request.properties))
        live = self._calls.read(token, request.id)
        if live is None:
            return provider_pb2.ReadResponse()
        uid = _uid(old_outputs)
        if uid and live["metadata"]["uid"] != uid and not self._calls.holds(live, plain(old_inputs)):
            return provider_pb2.ReadResponse()  # another client made this object after Herdsman's was deleted
        manager = self._calls.manager_in_charge(live, objects.recorded_manager(old_outputs))
        if old_inputs:
            refreshed = self._calls.refreshed(token, old_inputs, live, former=manager)
        else:
            refreshed = objects.imported_inputs(self._calls.as_applied(live), token)
        outputs = self._outputs(live, refreshed, token, manager, objects.recorded_version(old_outputs))
        return provider_pb2.ReadResponse(id=Identity.of(live).id, inputs=encode(refreshed), properties=encode(outputs))

    def _outputs(
        self, live: Json, inputs: Properties, token: Token, field_manager: str | None, initial_version: str = ""
    ) -> Properties:
        if self._remember == "identity":
            return objects.identity_outputs(live, field_manager)
        return objects.outputs(live, inputs, token, field_manager, initial_version)

    @_answering
    def Delete(self, request: provider_pb2.DeleteRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        old_outputs = plain(decode(request.properties))
        if context.is_active():
            self._calls.delete(
                Token.parse(request.type),
                request.id,
                uid=_uid(old_outputs),
                was_applied=old_outputs.get(objects.FIELD_MANAGER_KEY) == self._field_manager,
                old_inputs=plain(decode(request.old_inputs)),
                urn=request.urn,
            )
        return empty_pb2.Empty()


def sdk_version() -> str:
    """Return the version of the installed `pulumi_kubernetes` SDK: the engine warns if its provider is older."""
    try:
        return importlib.metadata.version("pulumi-kubernetes")
    except importlib.metadata.PackageNotFoundError:
        return _FALLBACK_VERSION


def _unsupported_words(token: str) -> str:
    return (
        f"`{token}` is not supported by the embedded provider: it renders YAML, charts or directories. "
        "Register each object by itself, or use the official provider"
    )


def _leaves_out(old: Json, wanted: Json, token: Token) -> bool:
    """Return whether the old inputs have a field that the wanted ones lack."""
    gone = diffs.changes(objects.body(old, token), objects.body(wanted, token))
    return any(change.kind is diffs.Kind.DELETE for change in gone)


def _identity(outputs: Properties, resource_id: str) -> Identity:
    """Return the object that a state belongs to, by its outputs, else by its id."""
    of_outputs = Identity.of(outputs) if isinstance(outputs.get("metadata"), dict) else None
    return of_outputs if of_outputs and of_outputs.name else Identity.parse(resource_id, namespaced="/" in resource_id)


def _uid(outputs: Properties) -> str | None:
    metadata: Any = outputs.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else None


def _judged(found: list[Change], wanted: Properties, verdict: Verdict, ignored: list[str]) -> list[Change]:
    """Add drift and immutable fields, as the cluster reports them, to the changes of the inputs.

    Pulumi shows the values of state and inputs as old and new value; the state does not have the live value. So drift
    is reported as ADD: a DELETE would show as the loss of a field that the update restores, and an UPDATE as `2 => 2`.
    If the object is gone, every field is an ADD.
    """
    if verdict.missing or verdict.recreated:
        return [Change((key,), diffs.Kind.ADD, replaces=verdict.missing, in_inputs=False) for key in wanted]
    drifted = [Change(drift.path, diffs.Kind.ADD, in_inputs=False) for drift in verdict.drifts]
    return [*diffs.replacing(found, verdict.immutable), *diffs.without(drifted, ignored)]


def _diff_answer(found: list[Change], *, delete_first: bool = True) -> provider_pb2.DiffResponse:
    if not found:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE, hasDetailedDiff=True)
    replaced = [change for change in found if change.replaces]
    return provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME,
        hasDetailedDiff=True,
        diffs=list(dict.fromkeys(str(change.path[0]) for change in found)),
        replaces=list(dict.fromkeys(str(change.path[0]) for change in replaced)),
        deleteBeforeReplace=bool(replaced) and delete_first,
        detailedDiff={
            diffs.path_text(change.path): _PropertyDiff(
                kind=DIFF_KINDS[change.kind, change.replaces], inputDiff=change.in_inputs
            )
            for change in found
        },
    )
