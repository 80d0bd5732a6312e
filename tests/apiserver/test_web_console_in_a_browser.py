"""The web console in a real browser: every page, its scripts and forms, and its accessibility by axe-core."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from agent.contract import ProcessPlan
from agent.server.store import ProcessRecord, Store
from automation.history.revision import Outcome, data_of, manifest
from automation.local.folders import LocalFolders
from automation.places.cluster import ClusterPlace
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import accessibility, controlplane, event_loop, needs, previews
from tests.support.browser import browser
from tests.support.console_process import console_process, shared_console_process
from tests.support.definitions import install_crds

PAGES = ("Services", "Queue", "Changes", "Hosts", "Models", "Catalog", "Playground")
BAD = """<title>x</title><main><h1>x</h1><h3>skips</h3><input><img src='data:,'><p style='color:#bbb'>pale</p>
<meter></meter><label for=nothing>lost</label><table><tr><td>1</table><style>:focus-visible{outline:none}</style>"""
LINKS = "[...document.querySelectorAll('header nav a')]"
LOADED = "document.readyState === 'complete'"
FIELD = "document.querySelector('#replicas')"
PENDING = {"digest": "abc123", "summary": "1 to change", "changes": ["Deployment chat: replicas 1 to 2"]}
CONDITION = {
    "type": "Ready",
    "status": "False",
    "reason": "Serving",
    "message": "1 of 1 replicas ready",
    "lastTransitionTime": "2026-11-01T00:00:00Z",
}


@pytest.fixture
def client(kubeconfig: Path, api: controlplane.Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(kubeconfig))


@pytest.fixture
def link(kubeconfig: Path) -> Iterator[str]:
    with console_process(kubeconfig) as found:
        yield found


def test_every_page_works_in_a_browser(link: str, client: KubeClient, namespace: str, tmp_path: Path) -> None:
    needs.require("chromium")
    place = ClusterPlace(client, title="cluster test", default_namespace=namespace)
    place.apply([previews.model_cr(source="https://example.com/base.gguf"), previews.service_cr(replicas=1)])

    async def visit() -> None:
        async with browser(tmp_path) as page:
            await page.go(link)
            assert await page.run("document.querySelector('h1').textContent") == "Services"
            for name in PAGES:
                await page.run(f"window.left = true; {LINKS}.find(link => link.textContent === '{name}').click()")
                await page.until(f"{LOADED} && !window.left && document.querySelector('h1').textContent === '{name}'")
                await accessibility.check(page)

            await page.go(link.partition("/open")[0])
            await page.run(f"document.querySelector('a[href=\"/services/{namespace}/chat\"]').click()")
            await page.until(f"{LOADED} && {FIELD}")
            await accessibility.check(page)
            assert await page.run(f"{FIELD}.value") == "1"
            await page.run(f"{FIELD}.value = 2; {FIELD}.form.submit(); window.kept = true")
            await page.until(f"{LOADED} && !window.kept && {FIELD}?.value === '2'")

            # The content follows the cluster, without a load of the page.
            await page.go(link.partition("/open")[0])
            # What changed before the stream of events began is loaded when it begins.
            await page.until("performance.getEntriesByType('resource').some(one => one.initiatorType === 'fetch')")
            await page.run("window.kept = true")
            await asyncio.to_thread(place.apply, [previews.service_cr("second")])
            await page.until("document.body.innerText.includes('second') && window.kept")
            assert page.faults == []

    event_loop.run(visit())
    assert client.get(kinds.INFERENCE_SERVICES, namespace, "chat")["spec"]["replicas"] == 2


def test_every_state_of_a_page_is_accessible(link: str, client: KubeClient, namespace: str, tmp_path: Path) -> None:
    needs.require("chromium")
    place = ClusterPlace(client, title="cluster test", default_namespace=namespace)
    place.apply([previews.model_cr(source="https://example.com/base.gguf"), previews.service_cr(replicas=1)])
    made = client.get(kinds.INFERENCE_SERVICES, namespace, "chat")
    status = {"phase": "Ready", "readyReplicas": 1, "pendingChange": PENDING, "conditions": [CONDITION]}
    client.patch(kinds.INFERENCE_SERVICES, namespace, "chat", {"status": status}, subresource="status")
    data = data_of(made, [client.get(kinds.MODELS, namespace, "base")])
    client.create(kinds.CONTROLLER_REVISIONS, namespace, manifest(made, 1, data, Outcome("", "", timedelta(seconds=1))))
    place.scale(place.find("chat"), 2)
    model = {"phase": "Downloading", "download": {"bytes": 2**30, "total": 2**31}}
    client.patch(kinds.MODELS, namespace, "base", {"status": model}, subresource="status")
    host = f"host-of-{namespace}"
    body = {"apiVersion": kinds.HOSTS.api_version, "kind": "Host", "metadata": {"name": host}, "spec": {}}
    client.create(kinds.HOSTS, None, body)
    process = {"name": "chat", "memory": 2**31, "reserved": 2**31, "tokensPerSecond": 12.5}
    told = {"conditions": [CONDITION], "allocatable": {"memory": 2**36}, "processes": [process]}
    client.patch(kinds.HOSTS, None, host, {"status": told}, subresource="status")
    origin, service = link.partition("/open")[0], f"/services/{namespace}/chat"

    async def visit() -> None:
        async with browser(tmp_path) as page:
            await page.go(f"{origin}/")
            assert "Open the console by its link" in await page.run("document.body.innerText")
            await accessibility.check(page)

            await page.go(link)
            await page.go(f"{origin}{service}")
            await page.until("document.querySelector('.pending button')?.textContent === 'Approve abc123'")
            await page.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
            await accessibility.check(page)

            await page.go(f"{origin}{service}/versions")
            await page.until("document.querySelector('.diff ins')")
            await accessibility.check(page)
            await page.go(f"{origin}{service}/versions?from=7&to=8")
            await page.until("document.querySelector('[role=alert]')")
            await accessibility.check(page)
            await page.go(f"{origin}{service}/log")
            await accessibility.check(page)

            # A form of an older session, an unknown service, and an unknown address.
            await page.go(f"{origin}{service}")
            await page.run(f"{FIELD}.form.elements.token.value = 'old'; {FIELD}.form.submit()")
            await page.until(f"{LOADED} && document.querySelector('h1')?.textContent === 'Forbidden'")
            await accessibility.check(page)
            for path, title in ((f"/services/{namespace}/nothing", "Not found"), ("/nothing", "Not Found")):
                await page.go(f"{origin}{path}")
                assert await page.run("document.querySelector('h1').textContent") == title
                await accessibility.check(page)

            for path, shown in (("/hosts", "meter"), ("/models", "progress"), ("/changes", ".pending a")):
                await page.go(f"{origin}{path}")
                await page.until(f"document.querySelector('main {shown}')")
                await accessibility.check(page)
            await page.go(f"{origin}/catalog")
            await page.run("document.querySelector('main form').submit()")
            await page.until("document.querySelector('h2')?.textContent === 'What would change'")
            await page.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
            await accessibility.check(page)

            await page.go(f"{origin}/playground?service={namespace}/chat")
            await page.run("document.querySelector('#message').value = 'Hello?'")
            await page.run("document.querySelector('#chat').requestSubmit()")
            # No pod serves: the conversation shows the question and the error.
            await page.until("document.querySelector('.said.user') && document.querySelector('.said.failed')")
            await accessibility.check(page)

    try:
        event_loop.run(visit())
    finally:
        client.delete(kinds.HOSTS, None, host)


@pytest.mark.soak
def test_empty_pages_are_accessible_and_new_lines_of_a_log_appear(tmp_path: Path) -> None:
    needs.require("chromium")
    folders = LocalFolders.of_user({"HOME": str(tmp_path)})
    folders.make()
    store = Store(folders.store)
    store.open()
    plan = ProcessPlan(host="local", service="chat", argv=("x",), service_name="chat")
    store.write_record("default/chat", ProcessRecord(plan=plan))
    log = store.log_file("default/chat")
    log.write_text("the model is loaded\n")

    async def visit(link: str) -> None:
        async with browser(tmp_path) as page:
            await page.go(link)
            origin = link.partition("/open")[0]
            for path in ("/", "/queue", "/hosts", "/models", "/playground"):
                await page.go(f"{origin}{path}")
                await page.until("document.querySelector('.empty')")
                await accessibility.check(page)

            documents = yaml.safe_dump_all([previews.model_cr(), previews.service_cr()])
            (folders.config / "chat.yaml").write_text(documents)
            await page.go(f"{origin}/")
            await page.until(f"{LOADED} && document.querySelector('main td a')")
            await page.run("document.querySelector('main td a').click()")
            await page.until(f"{LOADED} && document.querySelector('a[href*=\"/log?\"]')")
            await page.run("document.querySelector('a[href*=\"/log?\"]').click()")
            await page.until(f"{LOADED} && document.querySelector('.log')?.textContent === 'the model is loaded\\n'")
            await accessibility.check(page)
            with log.open("a") as file:
                file.write("<b>a request</b>\n")
            await page.until("document.querySelector('.log').textContent.endsWith('<b>a request</b>\\n')")
            assert page.faults == []

    try:
        with console_process(None, home=tmp_path) as link:
            event_loop.run(visit(link))
    finally:
        store.close()


def test_the_sign_in_and_its_refusals_are_accessible(
    client: KubeClient, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    needs.require("chromium")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}
    client.create(kinds.SERVICE_ACCOUNTS, namespace, account)
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/nobody/token"
    token = client.request("POST", path, body={"spec": {"expirationSeconds": 600}})["status"]["token"]

    async def visit(address: str) -> None:
        async with browser(tmp_path) as page:
            await page.call("Security.setIgnoreCertificateErrors", ignore=True)
            await page.go(f"{address}/login")
            await accessibility.check(page)
            await page.run("document.querySelector('#bearer').value = 'no.such.token'")
            await page.run("document.querySelector('.sign-in').requestSubmit()")
            await page.until(f"{LOADED} && document.querySelector('[role=alert]')")
            await accessibility.check(page)
            assert "does not accept this token" in await page.run("document.body.innerText")

            await page.go(f"{address}/login")
            await page.run(f"document.querySelector('#bearer').value = '{token}'")
            await page.run("document.querySelector('.sign-in').requestSubmit()")
            await page.until(f"{LOADED} && document.querySelector('.signed-in')")
            await accessibility.check(page)
            # The account has no role, so another namespace is refused.
            await page.go(f"{address}/services/kube-system/chat")
            await page.until(f"{LOADED} && document.querySelector('h1')?.textContent === 'Not allowed'")
            await accessibility.check(page)

    with shared_console_process(kubeconfig, tmp_path) as (address, _):
        event_loop.run(visit(address))


def test_the_checks_find_faults(tmp_path: Path) -> None:
    needs.require("chromium")

    async def visit() -> tuple[list[str], list[str]]:
        async with browser(tmp_path) as page:
            await page.go(f"data:text/html,{quote(BAD)}")
            return await accessibility.problems(page), await accessibility.faults(page)

    problems, faults = event_loop.run(visit())
    rules = {each.partition(":")[0] for each in problems}
    assert {"html-has-lang", "heading-order", "label", "image-alt", "color-contrast"} <= rules, problems
    [pale] = [each for each in problems if each.startswith("color-contrast")]
    assert "p: Elements must meet minimum color contrast ratio thresholds; " in pale
    for expected in ("focus is not visible", "meter has no name", "label lost has no control", "has no headers"):
        assert any(expected in each for each in faults), (expected, faults)
