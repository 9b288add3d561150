"""After the broker closed an idle connection, the next call of the blocking client opens a new one."""

from __future__ import annotations

import socket
import threading

from anabranch.admin.client import AdminClient

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n42"


def test_connection_closed_by_broker_is_reopened() -> None:
    ended = threading.Event()
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def serve() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(30)
                    requests.append(connection.recv(65_536).partition(b" HTTP")[0])
                    connection.sendall(ANSWER)
                ended.set()

        server = threading.Thread(target=serve)
        server.start()
        with AdminClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=30) as admin:
            assert admin.get("/one") == 42
            assert ended.wait(30)
            assert admin.post("/two") == 42
        server.join(30)
    assert requests == [b"GET /one", b"POST /two"]
