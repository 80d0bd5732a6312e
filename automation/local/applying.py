"""Applies the folder once, by the loop's program and engine, and records the result.

`running` starts it as a process of its own after each change, so that the memory that Pulumi's libraries need is free
again afterwards. The steps are those of the loop: read and render (`documents`), one batch of the engine for each
namespace, the provider (`provider`) hands plans to the agent. The state is a file backend beside the other files.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping

import structlog

from agent.client.http import HttpHost, token_from
from agent.client.port import HostClient, HostError
from agent.contract import ProcessPlan
from agent.server.store import RUN_FILE, TOKEN_FILE, RunFile
from agent.stop_signals import on_stop_signal
from automation.engine.port import Batch, Engine, EngineFailed, ServiceOutcome, Stack
from automation.engine.pulumi_engine import PulumiEngine
from automation.local.applied import Applied, AppliedService, FileProblem
from automation.local.applying_process import CONTEXTS_PENDING, ONLY_IF_CHANGED
from automation.local.contexts import choose_contexts, header_reader
from automation.local.documents import FolderUnreadable, LocalFolder, LocalService, argument_of, read_files, read_folder
from automation.local.folders import HOST, LocalFolders, read_json
from automation.local.provider import LocalProvider
from components.providers.plugin_server import EmbeddedPlugins
from components.rendered import RenderedService
from program.desired import keys
from program.desired.keys import ServiceKey
from program.desired.service import HostContext
from tools.toolchain import ToolMissing, locate

AGENT_WAIT_S = 60.0
POLL_S = 0.05
_NAME_FLAGS = ("--served-model-name", "--alias", "-a")

log = structlog.get_logger(__name__)


def main() -> None:
    """Apply the folder of this user, for the instance that started this process."""
    from automation.telemetry.logs import configure_logging

    configure_logging("json")
    os.umask(0o077)
    cancel = threading.Event()
    on_stop_signal(cancel.set)
    only_if_changed = ONLY_IF_CHANGED in sys.argv[1:]
    sys.exit(apply_folder(LocalFolders.of_user(), cancel=cancel, parent=os.getppid(), only_if_changed=only_if_changed))


def apply_folder(folders: LocalFolders, *, cancel: threading.Event, parent: int, only_if_changed: bool = False) -> int:
    """Apply the folder by the agent of the process `parent`.

    With `only_if_changed` Pulumi runs only if the result would differ from the last record. Returns the exit code: 1
    if a part failed, CONTEXTS_PENDING if only a context could not be chosen yet. Both are worth another try.
    """
    # The instance has noted the state of the folder before its agent started. What changes later is applied later.
    host = _agent(folders, parent, cancel)
    if host is None:
        return 1
    before = Applied.read(folders.applied)
    try:
        folder = read_folder(*read_files(folders.config))
    except FolderUnreadable as error:
        # Nothing is known of the services, so nothing changes.
        problem = FileProblem(file=str(folders.config), message=str(error))
        before.model_copy(update={"problems": (problem,)}).write(folders.applied)
        log.warning("Could not read the folder", error=str(error))
        return 1
    started = time.monotonic()
    try:
        contexts = choose_contexts(folder, before, host, header_reader(folders))
    except HostError as error:
        # Other contexts would restart what runs.
        log.warning("The agent does not answer", error=error.message)
        return 1
    folder = contexts.folder
    applied_code = CONTEXTS_PENDING if contexts.is_worth_another_try else 0
    if only_if_changed and record(folder, before, {}, "", contexts.chosen).text() == before.text():
        log.info("No context has changed", pending=contexts.is_worth_another_try)
        return applied_code
    outcomes: Mapping[ServiceKey, ServiceOutcome] = {}
    engine_problem = ""
    try:
        with EmbeddedPlugins({"kubernetes": LocalProvider(host)}, threads=8) as plugins:
            engine = PulumiEngine(
                provider_port=plugins.ports["kubernetes"],
                state_url=f"file://{folders.pulumi / 'state'}",
                work_root=folders.pulumi / "work",
                pulumi=locate("pulumi"),
                # The lock of the instance is held by the process that started this one.
                sole=lambda: True,
            )
            try:
                outcomes = run_batches(engine, folder, before, cancel=cancel)
            finally:
                engine.close()
    except ToolMissing as missing:
        engine_problem = f"`{missing.name}` {missing.why}; {missing.remedy}"
    except EngineFailed as failed:
        engine_problem = failed.message
    result = record(folder, before, outcomes, engine_problem, contexts.chosen)
    result.write(folders.applied)
    if not engine_problem:
        remove_unknown(host, folder, result)
    log.info(
        "Applied the folder",
        services=len(result.services),
        problems=len(result.problems) + sum(bool(each.problem) for each in result.services),
        engine_problem=engine_problem,
        duration_s=round(time.monotonic() - started, 2),
    )
    failed_some = not all(each.ok for each in outcomes.values())
    return 1 if engine_problem or failed_some else applied_code


def run_batches(
    engine: Engine, folder: LocalFolder, before: Applied, *, cancel: threading.Event | None = None
) -> dict[ServiceKey, ServiceOutcome]:
    """Apply the valid services, and remove those whose documents are gone. Raises EngineFailed for the whole state."""
    apply: dict[str, list[RenderedService]] = {}
    for key, service in folder.services.items():
        if service.rendered is not None:
            apply.setdefault(key.namespace, []).append(service.rendered)
    stacks = engine.stacks()
    outcomes: dict[ServiceKey, ServiceOutcome] = {}
    for namespace in sorted({*apply, *(stack.namespace for stack in stacks)}):
        stack = Stack(namespace)
        held = engine.services(stack) if stack in stacks else set()
        batch = Batch(stack, tuple(apply.get(namespace, ())), tuple(sorted(gone(held, folder, before))))
        if not batch.keys:
            continue
        try:
            outcomes.update(engine.up(batch, cancel=cancel).services)
        except EngineFailed as failed:
            # The services of other namespaces have a stack of their own.
            outcomes.update({key: ServiceOutcome(key, ok=False, error=failed) for key in batch.keys})
    return outcomes


def gone(held: Iterable[ServiceKey], folder: LocalFolder, before: Applied) -> set[ServiceKey]:
    """Return the services of the state whose documents are gone.

    A service stays while the file that had it cannot be read. So does one of which no file is known, while any file
    cannot be read.
    """
    lost: set[ServiceKey] = set()
    for key in held:
        if key in folder.services:
            continue
        known = before.of(*key)
        if (known.file in folder.broken) if known is not None else folder.broken:
            continue
        lost.add(key)
    return lost


def remove_unknown(host: HostClient, folder: LocalFolder, result: Applied) -> None:
    """Remove the agent's processes of no service, which nothing else removes after Pulumi's state was lost.

    The agent belongs to local mode alone. While a file cannot be read, its services are not known, and all stay.
    """
    if folder.broken:
        return
    known = {name for each in result.services for name in (each.process, each.full_name)}
    try:
        for key in sorted(host.plan().processes.keys() - known):
            host.delete(key)
            log.info("Removed a process of no service", process=key)
    except HostError as error:
        log.warning("Could not look for processes of no service", error=error.message)


def record(
    folder: LocalFolder,
    before: Applied,
    outcomes: Mapping[ServiceKey, ServiceOutcome],
    engine_problem: str,
    contexts: Mapping[ServiceKey, HostContext] = {},
) -> Applied:
    """Return what the folder has and what became of it. `contexts` has those that Herdsman chose."""
    services: dict[ServiceKey, AppliedService] = {}
    for key, service in folder.services.items():
        outcome = outcomes.get(key)
        problem = service.problem or engine_problem
        if not problem and outcome is not None and not outcome.ok:
            problem = outcome.error.message if outcome.error is not None else "Pulumi did not apply it"
        services[key] = _entry(service, before.of(*key), problem, contexts.get(key))
    for old in before.services:
        key = ServiceKey(old.dialect, old.namespace, old.name)
        if key not in services and old.file in folder.broken:
            why = f"{old.file} {folder.broken[old.file]}"
            services[key] = old.model_copy(update={"problem": why})
    return Applied(
        services=tuple(services[key] for key in sorted(services)),
        problems=tuple(FileProblem(file=name, message=why) for name, why in sorted(folder.broken.items())),
        engine_problem=engine_problem,
    )


def _entry(
    service: LocalService, before: AppliedService | None, problem: str, context: HostContext | None
) -> AppliedService:
    """Return the entry of a service. One that is not valid keeps what is known of the process that still runs."""
    key, metadata = service.key, service.document["metadata"]
    base = AppliedService(
        dialect=key.dialect,
        namespace=key.namespace,
        name=key.name,
        file=service.file,
        spec_hash=service.spec_hash,
        problem=problem,
        document=service.document,
        created_s=before.created_s if before is not None and before.created_s else int(time.time()),
    )
    desired, rendered = service.desired, service.rendered
    if desired is None or rendered is None:
        if before is None:
            return base
        kept = ("process", "engine_name", "context_size", "default_context", "model", "cache_keys", "capabilities")
        return base.model_copy(update={name: getattr(before, name) for name in kept})
    annotations = metadata.get("annotations") or {}
    plan = service.plan
    files = [] if plan is None else [plan.file, *(plan.files or {}).values()]
    cache_keys = tuple(dict.fromkeys(each.cache_key for each in files if each is not None))
    return base.model_copy(
        update={
            "process": f"{key.namespace}/{rendered.objects[0].name}" if rendered.objects else "",
            "stopped": not rendered.objects,
            "model": desired.model.name,
            "context_size": service.context_size,
            "default_context": "" if context is None else _noted(context),
            "engine_name": _engine_name(annotations.get(keys.ANNOTATION_SERVED_NAME, ""), plan),
            "capabilities": (desired.mode,),
            # A stopped service keeps its files.
            "cache_keys": cache_keys or (before.cache_keys if before is not None else ()),
        }
    )


def _noted(context: HostContext) -> str:
    return str(context.tokens) if context.chosen == "default" else context.chosen


def _engine_name(served: str, plan: ProcessPlan | None) -> str:
    if served or plan is None:
        return served
    if plan.daemon_model:
        return plan.daemon_model
    return argument_of(plan.argv, _NAME_FLAGS)


def _agent(folders: LocalFolders, parent: int, cancel: threading.Event) -> HttpHost | None:
    """Return a client of the agent, once that has started. None if it does not start, or its process has ended."""
    deadline = time.monotonic() + AGENT_WAIT_S
    while time.monotonic() < deadline and not cancel.is_set() and os.getppid() == parent:
        found = read_json(folders.store / RUN_FILE)
        if isinstance(found, dict) and found.get("pid") == parent:
            run = RunFile.model_validate(found)
            return HttpHost(f"http://127.0.0.1:{run.http_port}", token_from(folders.store / TOKEN_FILE))
        time.sleep(POLL_S)
    log.warning("The agent did not start", host=HOST)
    return None


if __name__ == "__main__":
    main()
