"""A metadata service for tests, with the interfaces of three clouds."""

from __future__ import annotations

import http.server
import json
import threading
from datetime import UTC, datetime, timedelta


class Server:
    """Answers as a cloud does; `taken` is when the machine goes."""

    def __init__(self) -> None:
        self.taken: datetime | None = None
        self.tokens = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                assert (
                    self.path == "/latest/api/token"
                    and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
                )
                outer.tokens += 1
                self._say(200, "secret")

            def do_GET(self) -> None:
                self._say(*outer.answer(self.path, self.headers))

            def _say(self, code: int, text: str) -> None:
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *words: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def take(self, seconds: float = 120.0) -> None:
        """The machine goes so soon."""
        self.taken = datetime.now(UTC) + timedelta(seconds=seconds)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, headers) -> tuple[int, str]:
        if path.startswith("/latest/"):
            if headers.get("X-aws-ec2-metadata-token") != "secret":
                return 401, ""
            if self.taken is None:
                return 404, ""
            return 200, json.dumps({"action": "terminate", "time": self.taken.strftime("%Y-%m-%dT%H:%M:%SZ")})
        if path.startswith("/computeMetadata/"):
            return (200, "TRUE" if self.taken else "FALSE") if headers.get("Metadata-Flavor") else (403, "")
        events = [{"EventType": "Reboot"}]
        if self.taken:
            at = self.taken.strftime("%a, %d %b %Y %H:%M:%S GMT")
            events.append({"EventType": "Preempt", "NotBefore": at})
        return (200, json.dumps({"Events": events})) if headers.get("Metadata") == "true" else (400, "")
