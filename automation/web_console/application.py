"""The routes of the console, and the checks before each of them.

Every request needs a session of the console's `Entry`, except those that make one and the style sheet. A request for
another host name is refused (DNS rebinding), and a write needs the token of a form of its session. Reads that block run
in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources

from aiohttp import web

from automation.console.terminal_text import LogText
from automation.places.log_sources import NoLog
from automation.places.place import NoAccess, NoSuchService, PlaceError, ServiceState
from automation.places.replica_logs import Replica
from automation.places.service_view import pending_of
from automation.web_console import chat, live, refusals
from automation.web_console.deploying import documents_for, fits
from automation.web_console.entry import CALLER, Caller, Entry, page_response
from automation.web_console.html import Html
from automation.web_console.pages import (
    catalog,
    changes,
    fleet,
    hosts,
    layout,
    log,
    models,
    playground,
    service,
    versions,
)
from automation.web_console.reading import Reading
from kubeapi.errors import Forbidden, Unauthorized

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY = 4 * 1024 * 1024
MOST_STREAMS = 16
"""The number of streams (events, logs, answers of chats) that one session may have open."""
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` browsers send forms with the Origin `null`, which is refused.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FILES = {"console.css": "text/css", "console.js": "text/javascript"}


@dataclass
class Console:
    """One console; its entry says who may see what."""

    entry: Entry
    streams: Counter[str] = field(default_factory=Counter)
    """The number of open streams of each session."""

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(
            middlewares=[_headers, self._names, self._session, self._errors], client_max_size=MAX_BODY
        )
        app.add_routes(
            [
                *self.entry.routes(),
                web.get("/static/{name}", static),
                web.get("/", self.fleet),
                web.get("/events", self.events),
                web.get("/queue", self.queue),
                web.get("/changes", self.changes),
                web.post("/changes/{word}/{namespace}/{name}/approve", self.approve_resource),
                web.get("/hosts", self.hosts),
                web.get("/models", self.models),
                web.get("/catalog", self.catalog),
                web.post("/catalog/plan", self.plan),
                web.post("/catalog/deploy", self.deploy),
                web.get("/services/{namespace}/{name}", self.service),
                web.get("/services/{namespace}/{name}/log", self.log),
                web.get("/services/{namespace}/{name}/log-lines", self.log_lines),
                web.get("/services/{namespace}/{name}/versions", self.versions),
                web.post("/services/{namespace}/{name}/{action}", self.act),
                web.get("/playground", self.playground),
                web.post("/playground/chat", self.chat),
            ]
        )
        return app

    # --- checks -------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _names(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/health":  # the kubelet uses the pod's address
            return await handler(request)
        host = request.host.rpartition(":")[0] if request.host.rpartition(":")[2].isdigit() else request.host
        if refusal := self.entry.refusal_of_host(host.strip("[]")):
            raise web.HTTPMisdirectedRequest(text=refusal)
        origin = request.headers.get("Origin")
        if request.method == "POST" and origin is not None and origin != f"{request.scheme}://{request.host}":
            raise web.HTTPForbidden(text="the request comes from another site")
        return await handler(request)

    @web.middleware
    async def _session(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in self.entry.free:
            return await handler(request)
        caller = await self.entry.recognize(request)
        if caller is None:
            return page_response(401, self.entry.sign_in())
        if request.method == "POST":
            token = request.headers.get("X-Form-Token") or str((await request.post()).get("token", ""))
            if not self.entry.is_form_token(caller, token):
                raise web.HTTPForbidden(text="the form is of another session: load the page again")
        request[CALLER] = caller
        return await handler(request)

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except PlaceError as error:
            return self._refused(request[CALLER], error)

    def _refused(self, caller: Caller, error: PlaceError) -> web.Response:
        """Return the page of a request that failed."""
        match error, error.__cause__:
            case _, Unauthorized() if self.entry.refused_by_cluster(caller.session):
                return page_response(
                    401, self.entry.sign_in("The cluster no longer accepts your token. Sign in again.")
                )
            case _, Forbidden() as cause:
                status, title, text = 403, "Not allowed", refusals.words_of(cause.message)
            case NoSuchService(), _:
                status, title, text = 404, "Not found", _words(error)
            case NoAccess(), _:
                status, title, text = 502, "The place is not reachable", _words(error)
            case _:
                status, title, text = 422, "This was not done", _words(error)
        return page_response(status, layout.error(title, text, _frame(caller)))

    # --- pages --------------------------------------------------------------------------------------------------------

    async def fleet(self, request: web.Request) -> web.StreamResponse:
        states = await asyncio.to_thread(_reading(request).services)
        return self._shown(request, "Services", fleet.page(states, wanted=request.query.get("namespace", "")))

    async def queue(self, request: web.Request) -> web.StreamResponse:
        states = await asyncio.to_thread(_reading(request).services)
        return self._shown(request, "Queue", fleet.queue_page(states))

    async def changes(self, request: web.Request) -> web.StreamResponse:
        states = await asyncio.to_thread(_reading(request).services)
        resources = await asyncio.to_thread(_reading(request).pending_resources)
        waiting = [each for each in states if pending_of(each.document)]
        shown = changes.page(waiting, resources, token=_token(request))
        return self._shown(request, "Changes", shown, live="changes")

    async def approve_resource(self, request: web.Request) -> web.StreamResponse:
        asked, form = request.match_info, await request.post()
        found = await asyncio.to_thread(_reading(request).resource, asked["word"], asked["namespace"], asked["name"])
        await asyncio.to_thread(_reading(request).approve, found, str(form.get("digest", "")))
        raise web.HTTPSeeOther("/changes")

    async def hosts(self, request: web.Request) -> web.StreamResponse:
        uses = await asyncio.to_thread(_reading(request).hosts)
        return self._shown(request, "Hosts", hosts.page(uses), live="hosts")

    async def models(self, request: web.Request) -> web.StreamResponse:
        found = await asyncio.to_thread(_reading(request).models)
        return self._shown(request, "Models", models.page(found), live="models")

    async def service(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        details = await asyncio.to_thread(_reading(request).details, found)
        return self._shown(request, found.name, service.page(found, details, token=_token(request)))

    async def log(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        replicas = await asyncio.to_thread(_reading(request).replicas, found)
        chosen = _chosen(replicas, request.query.get("replica", "")) if replicas else None
        text = problem = ""
        if chosen is not None:
            try:
                clean = LogText()
                text = clean(await asyncio.to_thread(lambda: _reading(request).tail(found, chosen).read_new()))
                text += clean.rest()
            except NoLog as error:
                problem = live.words_of(error)
        return self._shown(request, f"Log of {found.name}", log.page(found, replicas, chosen, text, problem), live="")

    async def log_lines(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        replicas = await asyncio.to_thread(_reading(request).replicas, found)
        chosen = _chosen(replicas, request.query.get("replica", ""))
        try:
            tail = await asyncio.to_thread(_reading(request).tail, found, chosen)
        except NoLog as error:
            raise PlaceError(str(error), hint=error.hint) from error
        with self._stream(request) as (response, is_open):
            await live.send_log(request, response, tail, is_open)
        return response

    async def versions(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        kept = await asyncio.to_thread(_reading(request).revisions, found)
        numbers = [str(each.number) for each in kept]
        # By default the last change: of the newest version, or of the spec since the only version.
        usual = (numbers[1], numbers[0]) if len(numbers) > 1 else (*numbers, versions.NOW) if numbers else ("", "")
        old, new = request.query.get("from", usual[0]), request.query.get("to", usual[1])
        compared = None
        if _is_number(old) and (new == versions.NOW or _is_number(new)):
            upto = None if new == versions.NOW else int(new)
            compared = await asyncio.to_thread(_reading(request).compare, found, kept, int(old), upto)
        return self._shown(
            request, f"Versions of {found.name}", versions.page(found, kept, (old, new), compared), live=""
        )

    async def act(self, request: web.Request) -> web.StreamResponse:
        found, form, place = await self._found(request), await request.post(), _reading(request).place
        match request.match_info["action"]:
            case "scale":
                await asyncio.to_thread(place.scale, found, _replicas(str(form.get("replicas", ""))))
            case "stop":
                await asyncio.to_thread(place.stop, found)
            case "start":
                await asyncio.to_thread(place.start, found)
            case "approve":
                await asyncio.to_thread(_reading(request).approve, found.document, str(form.get("digest", "")))
            case _:
                raise web.HTTPNotFound
        raise web.HTTPSeeOther(service.path_of(found))

    async def catalog(self, request: web.Request) -> web.StreamResponse:
        rows = await asyncio.to_thread(fits, _reading(request))
        return self._shown(request, "Catalog", catalog.page(rows, token=_token(request)))

    async def plan(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        wanted, name = str(form.get("id", "")), str(form.get("name", ""))
        documents = await asyncio.to_thread(documents_for, _reading(request), wanted, name)
        planned = await asyncio.to_thread(_reading(request).place.plan, documents)
        return self._shown(
            request, f"Deploy {wanted}", catalog.plan_page(wanted, name, documents, planned, token=_token(request))
        )

    async def deploy(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        documents = await asyncio.to_thread(
            documents_for, _reading(request), str(form.get("id", "")), str(form.get("name", ""))
        )
        await asyncio.to_thread(_reading(request).place.apply, documents)
        namespace = documents[-1]["metadata"].get("namespace") or _reading(request).place.default_namespace
        raise web.HTTPSeeOther(f"/services/{namespace}/{documents[-1]['metadata']['name']}")

    async def playground(self, request: web.Request) -> web.StreamResponse:
        states = await asyncio.to_thread(_reading(request).services)
        shown = playground.page(states, wanted=request.query.get("service", ""), token=_token(request))
        return self._shown(request, "Playground", shown, live="")

    # --- what moves ---------------------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Send an event whenever what a page follows has changed, so that it loads its content again."""
        topic = request.query.get("of", live.TOPICS[0])
        if topic not in live.TOPICS:
            raise web.HTTPNotFound
        with self._stream(request) as (response, is_open):
            await live.send_changes(request, response, _reading(request), topic, is_open)
        return response

    async def chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.text())
        except ValueError:
            raise PlaceError("the body is no JSON") from None
        messages = chat.messages_of(body)
        place = _reading(request).place
        found = await asyncio.to_thread(place.find, str(body.get("name", "")), str(body.get("namespace", "")) or None)
        with self._stream(request) as (response, _):
            await response.prepare(request)
            try:
                # Closed at once when the browser has gone, so that the model stops its work.
                async with contextlib.aclosing(chat.answer(place, found, messages)) as pieces:
                    async for piece in pieces:
                        await response.write(f"data: {json.dumps({'text': piece})}\n\n".encode())
                await response.write(live.event("end"))
            except PlaceError as error:
                await response.write(live.event("failed", text=_words(error)))
        return response

    # --- parts --------------------------------------------------------------------------------------------------------

    async def _found(self, request: web.Request) -> ServiceState:
        kind, name = request.query.get("kind", ""), request.match_info["name"]
        full = f"{kind}/{name}" if kind else name
        return await asyncio.to_thread(_reading(request).place.find, full, request.match_info["namespace"])

    @contextlib.contextmanager
    def _stream(self, request: web.Request) -> Iterator[tuple[web.StreamResponse, live.IsOpen]]:
        """Count a stream of the request's session. Raises HTTPServiceUnavailable for too many."""
        session = request[CALLER].session
        if self.streams[session] >= MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text="too many pages of this session are open: close some")
        self.streams[session] += 1
        try:
            yield live.stream(_HEADERS), lambda: self.entry.is_open(session)
        finally:
            self.streams[session] -= 1
            if not self.streams[session]:
                del self.streams[session]

    def _shown(self, request: web.Request, title: str, content: Html, *, live: str = "services") -> web.Response:
        return page_response(200, layout.page(title, content, _frame(request[CALLER]), live=live))


async def static(request: web.Request) -> web.StreamResponse:
    """Serve the style sheet or the script."""
    name = request.match_info["name"]
    if name not in _FILES:
        raise web.HTTPNotFound
    data = resources.files("automation.web_console").joinpath("static", name).read_bytes()
    return web.Response(body=data, content_type=_FILES[name], charset="utf-8")


@web.middleware
async def _headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        if error.status < 400 or "text/html" not in request.headers.get("Accept", ""):
            error.headers.update(_HEADERS)
            raise
        # A person has opened an address or sent a form, and text alone has neither a title nor a language.
        response = page_response(error.status, layout.error(error.reason, _words_of(error), None))
    if not response.prepared:
        response.headers.update(_HEADERS)
    return response


def _reading(request: web.Request) -> Reading:
    return request[CALLER].reading


def _token(request: web.Request) -> str:
    return request[CALLER].form_token


def _frame(caller: Caller) -> layout.Frame:
    reading = caller.reading
    return layout.Frame(reading.place.title, reading.user, reading.namespace or "", caller.form_token)


def _words(error: PlaceError) -> str:
    return f"{error}. {error.hint[:1].upper()}{error.hint[1:]}." if error.hint else f"{error}."


def _words_of(error: web.HTTPException) -> str:
    """Return why a request is refused, as a sentence."""
    text = error.text or ""
    if not text or text == f"{error.status}: {error.reason}":
        return "The console has no answer for this address."
    return f"{text[:1].upper()}{text[1:]}."


def _chosen(replicas: Sequence[Replica], name: str) -> Replica:
    """Return the replica of this name; without a name the first one. Raises NoSuchService."""
    found = next((each for each in replicas if name in ("", each.name)), None)
    if found is None:
        raise NoSuchService(f"the service has no replica `{name[:80]}` now", hint="its page lists the replicas")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _replicas(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise PlaceError(f"`{text[:20]}` is not a number of replicas", hint="write a whole number from 0 to 9999")
    return int(text)
