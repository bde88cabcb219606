"""The route of the thin clients, which runs a command line as the request of the API that it stands for."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gflow.daemon.api.command_lines import ApiRequest, Call, read_call, translate
from gflow.daemon.api.permissions import check_local
from gflow.daemon.api.request import caller, receive_body
from gflow.daemon.auth.users import user_name
from gflow.errors import GflowError, clean_json, fold
from gflow.wire.shell_words import spell_hint

# An environment has at most 6 MiB.
MOST_CALL_BYTES = 8 << 20


async def run(request: Request) -> Response:
    """Run a command line of gbatch, gqueue, ginfo, gjob or gcancel, and answer with what it prints.

    For the command-line client of the same release: the fields are listed in `daemon/api/command_lines.py`.
    The header `x-gflow-stderr` says how many bytes of the answer are for standard error, `x-gflow-exit` is
    the exit code. 204: nothing was done, and the client has to run the command itself.
    """
    check_local(request, "command lines are for programs on this machine")
    call = read_call(await receive_body(request, "application/octet-stream", MOST_CALL_BYTES))
    if call is None:
        return Response(status_code=204)
    try:
        wanted = translate(call, lambda: user_name(caller(request)[0]))
    except GflowError as error:
        if any(word.endswith("json") for word in call.words):  # the error is printed as JSON
            return Response(status_code=204)
        text = "".join(f"{line}\n" for line in (error.message, spell_hint(error)) if line)
        errors = _for_terminal(call, f"{call.program}: {text}")
        return Response(errors, headers=_headers(len(errors), error.exit_code))
    if isinstance(wanted, str):
        return Response(wanted, headers=_headers(0))
    return Response(status_code=204) if wanted is None else _Answer(call, wanted)


def _headers(stderr: int, exit_code: int = 0) -> dict[str, str]:
    return {
        "content-type": "text/plain; charset=utf-8",
        "x-gflow-stderr": str(stderr),
        "x-gflow-exit": str(exit_code),
    }


def _for_terminal(call: Call, text: str) -> bytes:
    """Sentences for standard error; on a terminal, long lines continue on further lines."""
    return (fold(text, call.err) if call.err >= 0 else text).encode(errors="surrogateescape")


class _Answer(Response):
    """The answer of the API to the request of a command line, as the command prints it."""

    def __init__(self, call: Call, wanted: ApiRequest) -> None:
        super().__init__()
        self._call, self._wanted = call, wanted
        self._start: Message | None = None
        self._errors = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted, bodies = self._wanted, [self._wanted.body]
        query = {name: value for name, value in wanted.query.items() if value}
        inner = {
            **scope,
            "method": wanted.method,
            "path": wanted.path,
            "raw_path": wanted.path.encode(),
            "query_string": urlencode(query).encode(),
            "headers": [
                (b"host", b"gflow"),
                (b"accept", b"application/json" if wanted.is_json else b"text/plain"),
            ],
        }

        async def receive_body() -> Message:
            return {"type": "http.request", "body": bodies.pop()} if bodies else await receive()

        async def send_printed(message: Message) -> None:
            for printed in self._print(message):
                await send(printed)

        await scope["app"](inner, receive_body, send_printed)

    def _print(self, message: Message) -> list[Message]:
        """The messages of the answer that a message of the API becomes."""
        if message["type"] != "http.response.body":
            self._start = message
            return []
        content, is_last = message.get("body", b""), not message.get("more_body", False)
        start, is_json = self._start, self._wanted.is_json
        if is_json:
            content = clean_json(content) + b"\n" * is_last
        if start is None:
            return [{**message, "body": content}]
        if start["status"] >= 400:
            self._errors += content
            return self._refuse(start) if is_last else []
        self._start = None
        note = Headers(raw=start["headers"]).get("x-gflow-note", "")
        note = note and f"{self._call.program}: {note.encode('latin-1').decode(errors='surrogateescape')}\n"
        errors = _for_terminal(self._call, self._wanted.note + note)
        size = len(errors) + len(content) if is_last else None
        return _messages(_headers(len(errors)), errors + content, size)

    def _refuse(self, start: Message) -> list[Message]:
        if (
            self._wanted.is_json
        ):  # the client prints the error as JSON, after it asked again: nothing was changed
            return [{"type": "http.response.start", "status": 204}, {"type": "http.response.body"}]
        text = f"{self._call.program}: {self._errors.decode(errors='surrogateescape')}"
        errors = _for_terminal(self._call, self._wanted.note + text)
        code = int(Headers(raw=start["headers"]).get("x-gflow-exit", "1"))
        return _messages(_headers(len(errors), code), errors, len(errors))


def _messages(headers: dict[str, str], body: bytes, size: int | None) -> list[Message]:
    """The start of an answer and its first part. `size`: of the whole body; None: more parts follow."""
    if size is not None:
        headers["content-length"] = str(size)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return [
        {"type": "http.response.start", "status": 200, "headers": raw},
        {"type": "http.response.body", "body": body, "more_body": size is None},
    ]
