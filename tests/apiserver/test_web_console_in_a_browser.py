"""The web console in a real browser: every page, its scripts, its contrast in both colour schemes, and its forms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agent.contract import ProcessPlan
from agent.server.store import ProcessRecord, Store
from automation.local.folders import LocalFolders
from automation.places.cluster import ClusterPlace
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support import accessibility, controlplane, event_loop, needs, previews
from tests.support.browser import Browser, browser
from tests.support.console_process import console_process, shared_console_process

PAGES = ("Services", "Queue", "Changes", "Hosts", "Models", "Catalog", "Playground")
# WCAG 2.1, success criterion 1.4.3: text has a contrast of at least 4.5 with its background.
LOW_CONTRAST = """(() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = numbers(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("body *")].filter(element =>
    [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()) && element.offsetParent
  ).map(element => {
    const pair = [light(numbers(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
    return [element.tagName + " " + element.textContent.slice(0, 40), (pair[0] + 0.05) / (pair[1] + 0.05)];
  }).filter(([, ratio]) => ratio < 4.5);
})()"""

BAD = "<title>x</title><h3>skips</h3><input><img src='data:,'><style>:focus-visible{outline:none}</style>"
LINKS = "[...document.querySelectorAll('header nav a')]"
LOADED = "document.readyState === 'complete'"
FIELD = "document.querySelector('#replicas')"


@pytest.fixture
def client(kubeconfig: Path, api: controlplane.Api) -> KubeClient:
    previews.install_crds(api)
    return KubeClient.from_kubeconfig(str(kubeconfig))


@pytest.fixture
def link(kubeconfig: Path) -> Iterator[str]:
    with console_process(kubeconfig) as found:
        yield found


async def looked_at(page: Browser) -> None:
    for scheme in ("light", "dark"):
        await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert await page.run(LOW_CONTRAST) == []
    assert await accessibility.faults(page) == []


def test_every_page_works_in_a_browser(link: str, client: KubeClient, namespace: str, tmp_path: Path) -> None:
    needs.require("chromium")
    place = ClusterPlace(client, title="cluster test", default_namespace=namespace)
    place.apply([previews.model_cr(source="https://example.com/base.gguf"), previews.service_cr(replicas=1)])

    async def visit() -> None:
        async with browser(tmp_path) as page:
            await page.go(link)
            assert await page.run("document.querySelector('h1').textContent") == "Services"
            for name in PAGES:
                await page.run(f"{LINKS}.find(link => link.textContent === '{name}').click()")
                await page.until(f"{LOADED} && document.querySelector('h1').textContent === '{name}'")
                await looked_at(page)

            await page.go(link.partition("/open")[0])
            await page.run(f"document.querySelector('a[href=\"/services/{namespace}/chat\"]').click()")
            await page.until(f"{LOADED} && {FIELD}")
            await looked_at(page)
            assert await page.run(f"{FIELD}.value") == "1"
            await page.run(f"{FIELD}.value = 2; {FIELD}.form.submit(); window.kept = true")
            await page.until(f"{LOADED} && !window.kept && {FIELD}?.value === '2'")

            # The content follows the cluster, without a load of the page.
            await page.go(link.partition("/open")[0])
            await page.run("window.kept = true")
            await asyncio.to_thread(place.apply, [previews.service_cr("second")])
            await page.until("document.body.innerText.includes('second') && window.kept")
            assert page.faults == []

    event_loop.run(visit())
    assert client.get(kinds.INFERENCE_SERVICES, namespace, "chat")["spec"]["replicas"] == 2


def test_new_lines_of_a_log_appear_in_a_browser(tmp_path: Path) -> None:
    needs.require("chromium")
    folders = LocalFolders.of_user({"HOME": str(tmp_path)})
    folders.make()
    (folders.config / "chat.yaml").write_text(yaml.safe_dump_all([previews.model_cr(), previews.service_cr()]))
    store = Store(folders.store)
    store.open()
    plan = ProcessPlan(host="local", service="chat", argv=("x",), service_name="chat")
    store.write_record("default/chat", ProcessRecord(plan=plan))
    log = store.log_file("default/chat")
    log.write_text("the model is loaded\n")

    async def visit(link: str) -> None:
        async with browser(tmp_path) as page:
            await page.go(link)
            await page.until(f"{LOADED} && document.querySelector('main td a')")
            await page.run("document.querySelector('main td a').click()")
            await page.until(f"{LOADED} && document.querySelector('a[href*=\"/log?\"]')")
            await page.run("document.querySelector('a[href*=\"/log?\"]').click()")
            await page.until(f"{LOADED} && document.querySelector('.log')?.textContent === 'the model is loaded\\n'")
            await looked_at(page)
            with log.open("a") as file:
                file.write("<b>a request</b>\n")
            await page.until("document.querySelector('.log').textContent.endsWith('<b>a request</b>\\n')")
            assert page.faults == []

    try:
        with console_process(None, home=tmp_path) as link:
            event_loop.run(visit(link))
    finally:
        store.close()


def test_the_sign_in_is_accessible_and_the_checks_find_faults(kubeconfig: Path, tmp_path: Path) -> None:
    needs.require("chromium")

    async def visit(address: str) -> None:
        async with browser(tmp_path) as page:
            await page.call("Security.setIgnoreCertificateErrors", ignore=True)
            await page.go(f"{address}/login")
            await looked_at(page)
            await page.run("document.querySelector('#bearer').value = 'no.such.token'")
            await page.run("document.querySelector('.sign-in').requestSubmit()")
            await page.until(f"{LOADED} && document.querySelector('[role=alert]')")
            await looked_at(page)
            assert "does not accept this token" in await page.run("document.body.innerText")

            await page.go(f"data:text/html,{BAD}")
            found = await accessibility.faults(page)
            assert {"the page has no language", "h3 skips a level", "a textbox has no name"} <= set(found)
            assert any("image has no name" in each or "img has no name" in each for each in found), found
            assert any("focus is not visible" in each for each in found), found

    with shared_console_process(kubeconfig, tmp_path) as (address, _):
        event_loop.run(visit(address))
