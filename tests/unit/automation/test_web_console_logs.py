"""The pages of the web console for logs and versions, and the streams that keep pages current."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from agent.contract import ProcessPlan
from agent.server.store import ProcessRecord, Store
from automation.history.comparing import compare
from automation.history.revision import Revision
from automation.places.place import State
from automation.web_console import live
from automation.web_console.pages import versions
from automation.web_console.pages.models import page as models_page
from automation.web_console.sessions import COOKIE, Sessions
from tests.support.console_pages import Client, MemoryPlace, browse, state, token_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "agent")
    made.open()
    plan = ProcessPlan(host="box", service="chat", argv=("x",), service_name="chat")
    made.write_record("team/chat", ProcessRecord(plan=plan))
    yield made
    made.close()


def test_a_log_is_shown_without_scripts_and_without_control_characters(store: Store) -> None:
    log = store.log_file("team/chat")
    log.write_text("<b>first</b>\n\x1b[31mred\x1b[0m \x07\n")

    async def visit(client: Client, _: Sessions) -> None:
        text = await (await client.get("/services/team/chat/log")).text()
        assert "&lt;b&gt;first&lt;/b&gt;\nred \\x07\n" in text
        assert 'href="/services/team/chat/log?replica=chat">Read again' in text
        assert 'data-follow="/services/team/chat/log-lines?replica=chat"' in text
        assert "data-live" not in text
        listed = await (await client.get("/services/team/chat")).text()
        assert 'href="/services/team/chat/log?replica=chat"' in listed

    browse(MemoryPlace([state()]), visit, store=store.root)


def test_only_replicas_of_the_service_have_logs(store: Store) -> None:
    async def visit(client: Client, _: Sessions) -> None:
        for path in ("log", "log-lines"):
            for name in ("other", "..%2F..%2Fetc%2Fpasswd"):
                answer = await client.get(f"/services/team/chat/{path}?replica={name}")
                assert answer.status == 404

    browse(MemoryPlace([state()]), visit, store=store.root)


def test_a_log_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    async def visit(client: Client, _: Sessions) -> None:
        text = await (await client.get("/services/team/chat/log")).text()
        assert "has not run on this machine yet. Its log begins with its first start." in text
        assert "data-follow" not in text

    browse(MemoryPlace([state()]), visit, store=tmp_path / "nothing")


async def events_of(client: Client, path: str) -> aiohttp.StreamReader:
    answer = await client.get(path)
    assert answer.status == 200
    assert answer.content_type == "text/event-stream"
    return answer.content


async def next_event(stream: aiohttp.StreamReader) -> tuple[str, dict[str, str]]:
    async with asyncio.timeout(60):
        while not (line := (await stream.readline()).decode()).startswith("event: "):
            assert line, "the stream has ended"
        return line.removeprefix("event: ").strip(), json.loads((await stream.readline()).decode().partition(" ")[2])


def test_new_lines_follow_and_the_stream_ends_with_the_session(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOG_PAUSE_S", 0.01)
    log = store.log_file("team/chat")
    log.write_text("one\n")

    async def visit(client: Client, sessions: Sessions) -> None:
        stream = await events_of(client, "/services/team/chat/log-lines?replica=chat")
        assert await next_event(stream) == ("whole", {"text": "one\n"})
        with log.open("a") as file:
            file.write("two\n")
        assert await next_event(stream) == ("lines", {"text": "two\n"})
        session = next(each.value for each in client.session.cookie_jar if each.key == COOKIE)
        sessions.end(session)
        assert await next_event(stream) == ("ended", {"text": "The session has ended."})

    browse(MemoryPlace([state()]), visit, store=store.root)


def test_a_change_of_a_service_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CHANGES_PAUSE_S", 0.01)
    place = MemoryPlace([state()])

    async def visit(client: Client, _: Sessions) -> None:
        assert (await client.get("/events?of=secrets")).status == 404
        stream = await events_of(client, "/events?of=services")
        assert (await stream.readline()).startswith(b": alive")
        place.found = [state(state=State.FAILED)]
        assert await next_event(stream) == ("changed", {"of": "services"})

    browse(place, visit)


def test_a_session_has_a_bounded_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("automation.web_console.application.MOST_STREAMS", 1)

    async def visit(client: Client, _: Sessions) -> None:
        stream = await events_of(client, "/events")
        assert await stream.readline()
        assert (await client.get("/events")).status == 503
        token = await token_of(client, "/playground")
        asked = {"name": "chat", "messages": [{"role": "user", "content": "Hello"}]}
        answer = await client.post("/playground/chat", json=asked, headers={"X-Form-Token": token})
        assert answer.status == 503, "an answer of a chat is a stream too"

    browse(MemoryPlace([state()]), visit)


def test_an_ended_session_is_not_valid() -> None:
    sessions = Sessions()
    session = sessions.redeem(sessions.link_token)
    assert session is not None
    assert sessions.is_valid(session)
    sessions.end(session)
    assert not sessions.is_valid(session)


# --- versions ---------------------------------------------------------------------------------------------------------


def revision(number: int, **spec: object) -> Revision:
    data = {"spec": spec, "annotations": {}, "models": {}}
    return Revision(number, data, "kubectl", "", "", "Applied", "", 1.0, "2026-11-01T00:00:00Z")


def test_two_versions_are_compared_by_field_and_as_yaml() -> None:
    found = compare(revision(1, replicas=1, contextSize=2048).data, revision(2, replicas=1, contextSize=4096).data)
    assert found.changes == ("contextSize 2048 -> 4096",)
    assert "-  contextSize: 2048" in found.lines
    assert "+  contextSize: 4096" in found.lines
    assert not any(line.startswith(("---", "+++")) for line in found.lines)
    same = compare(revision(1).data, revision(2).data)
    assert (same.changes, same.lines) == ((), ())


def test_the_page_of_versions_marks_changes_and_keeps_the_choice() -> None:
    kept = [revision(2, prompt="<new>"), revision(1, prompt="old")]
    service = state(kind="Playground")
    text = versions.page(service, kept, ("1", versions.NOW), compare(kept[1].data, kept[0].data))
    assert "<ins>+  prompt: &lt;new&gt;\n</ins>" in text
    assert "<del>-  prompt: old\n</del>" in text
    assert '<option value="1" selected>version 1</option>' in text
    assert '<option value="now" selected>the present spec</option>' in text
    assert '<input type="hidden" name="kind" value="Playground">' in text
    assert "not kept any more" in versions.page(service, kept, ("1", "9"), None)
    assert "are equal" in versions.page(service, kept, ("1", "1"), compare({}, {}))


@pytest.mark.parametrize("query", ["", "?from=1&to=2", "?from=x&to=now", "?from=9999999999&to=-1"])
def test_a_place_without_versions_says_so(query: str) -> None:
    async def visit(client: Client, _: Sessions) -> None:
        answer = await client.get(f"/services/team/chat/versions{query}")
        assert answer.status == 200
        assert "No version of the service has been applied yet." in await answer.text()

    browse(MemoryPlace([state()]), visit)


# --- models -----------------------------------------------------------------------------------------------------------


def test_a_model_shows_its_download() -> None:
    model = {
        "metadata": {"name": "qwen", "namespace": "team"},
        "spec": {"source": "https://example.com/qwen.gguf"},
        "status": {"phase": "Downloading", "download": {"bytes": 2**29, "total": 2**30}},
    }
    text = models_page([model])
    assert '<progress value="536870912" max="1073741824"' in text
    assert "0.5 GiB of 1.0 GiB" in text
    assert "<progress" not in models_page([{**model, "status": {}}])
