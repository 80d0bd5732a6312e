"""`herdsman pull NAME`: download a model before a service needs it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from automation.cli.dry_run import DryRun, end_dry_run
from automation.cli.duration_argument import duration_s
from automation.cli.output import say
from automation.cli.place_options import Context, Kubeconfig, Namespace, errors_end, open_place
from automation.cli.waiting import WaitEnded, late_ends, shown
from automation.places.cluster_states import NO_STATUS
from automation.places.place import Download, PlaceError, ServiceState, State

if TYPE_CHECKING:
    from automation.places.place import Place
    from kubeapi.json_types import Json

LOOK_EVERY_S = 1.0


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A Model, a service, or the id of a model of the catalog.")
    ],
    source: Annotated[
        str,
        typer.Option(
            "--source", "-s", help="https:// address, hf://ORG/REPO/FILE or another address.", show_default=False
        ),
    ] = "",
    timeout: Annotated[str, typer.Option(help="Longest wait, as 2h.")] = "2h",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    dry_run: DryRun = False,
) -> None:
    """Download a model into the cache of its namespace, so that a service starts without a wait.

    Makes the Model if there is none. An interrupted download goes on. Exit code 3: it did not end in time.
    """
    timeout_s = float(duration_s(timeout, "--timeout"))
    changes: list[str] = []
    with errors_end(), late_ends():
        place = open_place(kubeconfig, context, dry_run=changes if dry_run else None)
        where = namespace or place.default_namespace
        model = _model(place, name, where, source)
        place.apply([model])
        if dry_run:
            end_dry_run(changes)
        _follow(place, model["metadata"]["name"], where, timeout_s)
    say(f"Model {where}/{model['metadata']['name']} is downloaded")


def _model(place: Place, name: str, namespace: str, source: str) -> Json:
    """Return the Model's document with prefetch. Raises PlaceError for a name without a source."""
    from automation.cli.catalog_documents import catalog_documents, service_name_of
    from automation.places.service_documents import DeployOptions, documents_of, source_of

    if not source and (found := service_name_of(name)) and place.document("Model", found, namespace) is None:
        made = catalog_documents(place, name, DeployOptions(), name=found, namespace=namespace)
        say(made.explanation, err=True)
        document = next(each for each in made.documents if each["kind"] == "Model")
        return {**document, "spec": {**document["spec"], "prefetch": True}}
    name = name if source else found or name
    service = place.document("InferenceService", name, namespace)
    model_name = str(((service or {}).get("spec") or {}).get("modelRef") or name)
    live = place.document("Model", model_name, namespace)
    known = source_of(source) if source else str(((live or {}).get("spec") or {}).get("source", ""))
    made_of = documents_of(model_name, DeployOptions(source=known), namespace=namespace)
    return {**made_of[0], "spec": {**made_of[0]["spec"], "prefetch": True}}


def _follow(place: Place, name: str, namespace: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    with shown() as show:
        while True:
            model = place.document("Model", name, namespace)
            if model is None:
                raise PlaceError(f"Model `{name}` was deleted")
            state = state_of_model(model)
            if state.state is State.READY and state.is_current:
                return
            if state.state is State.FAILED and state.is_current:
                raise PlaceError(f"Model `{name}` failed: {state.reason}: {state.message}")
            show(state)
            if time.monotonic() > deadline:
                raise WaitEnded(
                    f"Model `{name}` is not downloaded after {timeout_s:.0f} seconds: {state.message or state.phase}",
                    hint="the download goes on",
                )
            time.sleep(LOOK_EVERY_S)


def state_of_model(model: Json) -> ServiceState:
    """Return the state of a Model in the form of a service's. Pure."""
    metadata, status = model["metadata"], model.get("status") or {}
    ready: dict[str, Any] = next((each for each in status.get("conditions") or () if each.get("type") == "Ready"), {})
    told, phase = status.get("download") or {}, str(status.get("phase") or "Unknown")
    states = {"Ready": State.READY, "Failed": State.FAILED, "Unknown": State.UNKNOWN}
    message = "" if ready.get("status") == "True" else str(ready.get("message", ""))
    if not status:
        message = NO_STATUS
    return ServiceState(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata["name"]),
        state=states.get(phase, State.STARTING),
        phase=phase,
        reason=str(ready.get("reason", "")),
        message=message,
        is_current=status.get("observedGeneration") == metadata.get("generation"),
        download=Download(int(told["bytes"]), told.get("total")) if told.get("bytes") is not None else None,
        document=model,
    )
