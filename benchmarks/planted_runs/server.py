"""A slow store and a slow tracker: an HTTP server whose answers take as long as the request says.

    python -m planted_runs.server CORPUS      prints the port that it listens on

``GET /rows/INDEX?wait=SECONDS`` gives a row of ``rows.npy`` as bytes of int64; ``POST /logs?wait=SECONDS`` takes a log.
The wait is latency: requests of several clients wait side by side, and nobody computes meanwhile.
"""

import http.server
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np

__all__ = ["main"]


class _Slow(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]

    def do_GET(self) -> None:
        self._answer(self.rows[int(urlsplit(self.path).path.rsplit("/", 1)[-1])].tobytes())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        time.sleep(float(parse_qs(urlsplit(self.path).query)["wait"][0]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until the process is ended."""
    _Slow.rows = np.load(Path(sys.argv[1], "rows.npy"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
