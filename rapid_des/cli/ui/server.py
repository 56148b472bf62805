"""What the page may ask, and who may ask: requests with the token, from the page's own origin alone."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rapid_des.cli.ui import answers
from rapid_des.cli.ui.tasks import TaskFolder
from rapid_des.cli.ui.words import REPORT, Asked, check_asked, file_name, names
from rapid_des.cli.ui.worker import answered, begin
from rapid_des.config.documents import Document
from rapid_des.config.specs import decode, preset_names
from rapid_des.errors import InputError, RapidDesError
from rapid_des.processes import Worker
from rapid_des.report.page.document import fabric_script, style
from rapid_des.report.writing import write_text

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}
_OF_REPORTS = {"content-security-policy": "sandbox allow-scripts allow-downloads; frame-ancestors 'self'"}
"""Reports are pages of their own, which do not even share this page's origin."""
_MOST_BYTES = 1 << 20
_HISTORY = 200
_KINDS: Mapping[str, str] = {"index.html": "text/html", "ui.js": "text/javascript", "ui.css": "text/css"}
_SHARED: Mapping[str, tuple[Callable[[], str], str]] = {
    "page.css": (style, "text/css"),
    "fabric.js": (fabric_script, "text/javascript"),
}
"""What this page shares with reports."""


class Guard:
    """Lets requests through that name this host, come from no other origin, and know the token."""

    def __init__(self, app: ASGIApp, port: int, token: str) -> None:
        self.app = app
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it before anything reads it."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(Request(scope))
        if refusal:
            await PlainTextResponse(refusal, 403, _HEADERS)(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), text.encode()) for name, text in _HEADERS.items()]
            await send(message)

        await self.app(scope, receive, with_headers)

    def _refusal(self, request: Request) -> str:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self.hosts:
            return "this host is not the one that rapid-des ui listens on"
        if origin is not None and origin != f"http://{host}":
            return "another origin may not ask"
        given = request.url.path.removeprefix("/").partition("/")[0]
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return "the token is missing: use the address that rapid-des ui printed"
        if request.method == "POST":
            kind, length = (request.headers.get(name, "") for name in ("content-type", "content-length"))
            if kind != "application/json" or not length.isdecimal() or int(length) > _MOST_BYTES:
                return f"allowed: JSON of at most {_MOST_BYTES:,} bytes"
        return ""


class Page:
    """The page's questions, each a method that a route calls."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.tasks = TaskFolder(folder / "runs", workers)
        self._quick: Worker | None = None
        self._lock = Lock()
        self._decoding = Lock()  # msgspec prepares a type in one thread alone

    def routes(self) -> list[Route]:
        """Return the addresses below the token."""
        asking: dict[str, Callable[[Any], Any]] = {
            "quick": self._ask(answers.quick), "keys": self._ask(answers.keys),
            "fabric": self._ask(answers.fabric), "start": self.start, "command": self.command,
            "file": self.file, "keep": self.keep, "cancel": self.cancel,
        }  # fmt: skip
        looking: dict[str, Callable[[Request], Response]] = {
            "": self.asset, "{name}": self.asset, "api/names": self.names, "api/runs": self.runs,
            "api/runs/{number}": self.run, "api/runs/{number}/report": self.report,
            "api/compare": self.compare,
        }  # fmt: skip
        return [
            *(Route(f"/api/{name}", _posted(each), methods=["POST"]) for name, each in asking.items()),
            *(Route(f"/{name}", _looked(each)) for name, each in looking.items()),
        ]

    def close(self) -> None:
        """End all processes."""
        self.tasks.close()
        if self._quick is not None:
            self._quick.close()

    def _answer(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a quick answer; one that has died is replaced for the next question."""
        with self._lock:
            if self._quick is None:
                self._quick = Worker()
                self._quick.submit(begin, str(self.folder))
            future = self._quick.submit(answered, function, *arguments)
        try:
            return future.result()
        except BrokenProcessPool:
            self._quick = None
            return {
                "error": "the process that answers quickly has died: too little memory for this question?"
            }

    def _asked(self, plain: Any) -> Asked:
        with self._decoding:
            asked = decode(Document(Path("request"), plain), Asked)
        check_asked(asked, self.folder)
        return asked

    def _ask(self, function: Callable[..., Any], *more: Any) -> Callable[[Any], Any]:
        def ask(plain: Any) -> Any:
            asked = self._asked(plain)
            subject = (asked.job, asked.machine, asked.settings, asked.faults)
            return self._answer(function, subject, *more)

        return ask

    def start(self, plain: Any) -> Any:
        """Start a command."""
        return self.tasks.start(self._asked(plain)).status()

    def command(self, plain: Any) -> Any:
        """Return the words of a command."""
        return {"words": self._asked(plain).words()}

    def file(self, plain: Any) -> Any:
        """Return the job or the machine on the screen as a file."""
        kind = "machine" if plain.pop("kind", "job") == "machine" else "job"
        return self._ask(answers.file_text, kind)(plain)

    def keep(self, plain: Any) -> Any:
        """Write the job or the machine on the screen into the page's folder."""
        name = file_name(str(plain.pop("name", "")))
        reply = self.file(plain)
        if "error" in reply:
            return reply
        if (self.folder / name).exists():
            raise InputError(f"{name} is there already; choose another name")
        write_text(self.folder / name, reply["text"])
        return {"name": name}

    def cancel(self, plain: Any) -> Any:
        """End a command that waits or runs."""
        self.tasks.cancel(self.tasks.task(str(plain["number"])))
        return {}

    def asset(self, request: Request) -> Response:
        """Return a file of the page."""
        name = request.path_params.get("name", "index.html")
        if name in _SHARED:
            shared, kind = _SHARED[name]
            return Response(shared(), media_type=kind)
        if name not in _KINDS:
            return PlainTextResponse("there is no such page", 404)
        text = files(__package__).joinpath(name).read_text("utf-8")
        return Response(text, media_type=_KINDS[name], headers={"content-security-policy": _POLICY})

    def names(self, _: Request) -> Response:
        """Return what can be chosen."""
        own = {kind: names(kind, self.folder) for kind in ("job", "machine")}
        return JSONResponse({**own, **{kind: preset_names(kind) for kind in ("device", "model", "software")}})

    def runs(self, _: Request) -> Response:
        """Return what runs, and what has run."""
        return JSONResponse({"runs": list(self.tasks.newest(_HISTORY))})

    def run(self, request: Request) -> Response:
        """Return a run's state, and the result where it has one."""
        task = self.tasks.task(request.path_params["number"])
        known = task.status()
        if known["state"] == "ended" and not known.get("error") and known["words"][0] == "run":
            plain = self.tasks.result(task.number)
            with self._decoding:
                known |= {"plain": plain, "html": answers.run_html(plain)}
        return JSONResponse(known)

    def report(self, request: Request) -> Response:
        """Return the page that a command wrote."""
        text = self.tasks.task(request.path_params["number"]).text(REPORT)
        return HTMLResponse(text or "no report", 200 if text else 404, _OF_REPORTS)

    def compare(self, request: Request) -> Response:
        """Return two results side by side."""
        numbers = [request.query_params.get(side, "") for side in "ab"]
        sides = [self.tasks.result(number) for number in numbers]
        paths = [f"runs/{number}/out.json" for number in numbers]
        with self._decoding:
            reply = answered(answers.compared, (sides[0], sides[1]), (paths[0], paths[1]))
        return (
            HTMLResponse(reply["html"], headers=_OF_REPORTS) if "html" in reply else JSONResponse(reply, 400)
        )


def _looked(function: Callable[[Request], Response]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            return await run_in_threadpool(function, request)
        except RapidDesError as error:
            return JSONResponse({"error": str(error)}, 404)

    return endpoint


def _posted(function: Callable[[Any], Any]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            plain = msgspec.json.decode(await request.body(), type=dict[str, Any])
            return JSONResponse(await run_in_threadpool(answered, function, plain))
        except (msgspec.MsgspecError, KeyError) as error:
            return JSONResponse({"error": f"not a question of the page: {error}"}, 400)

    return endpoint


def serve_page(listener: socket.socket, token: str, folder: Path, workers: int) -> None:
    """Answer the page until the process is interrupted."""
    page = Page(folder, workers)
    server = uvicorn.Server(
        uvicorn.Config(
            application(page, listener, token), log_level="critical", lifespan="off", server_header=False
        )
    )
    try:
        server.run([listener])
    finally:
        page.close()


def application(page: Page, listener: socket.socket, token: str) -> Starlette:
    """Return the application that answers on a socket."""
    port = listener.getsockname()[1]
    guard = Middleware(Guard, port=port, token=token)
    return Starlette(routes=[Mount(f"/{token}", routes=page.routes())], middleware=[guard])
