"""A TCP proxy between a client and its server, for what networks do: lose an answer, hang, break, encrypt."""

import socket
import ssl
import threading
from contextlib import suppress
from weakref import WeakSet

_CHUNK = 65_536


class Proxy:
    """Forwards to a port of this machine. The answer to the next request that holds `lose` is not passed on, and its
    connection closed. With a context it speaks TLS in front. `cut` closes all connections, and new ones, until
    `mend`."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._target = port
        self._context = context
        self.lose: bytes | None = None
        self.lost = 0
        self._losing = threading.Event()
        self._is_cut = False
        self._clients: WeakSet[socket.socket] = WeakSet()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Closing alone would leave the accepting thread where it is.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self) -> None:
        self._is_cut = True
        for client in list(self._clients):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._is_cut = False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut:
                    client.close()
                    continue
                self._clients.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            encrypted = self._context.wrap_socket(client, server_side=True) if self._context else client
            with encrypted, socket.create_connection(("127.0.0.1", self._target)) as server:
                threading.Thread(target=self._answer, args=(server, encrypted), daemon=True).start()
                self._ask(encrypted, server)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        while asked := client.recv(_CHUNK):
            if self.lose is not None and self.lose in asked:
                self.lose = None
                self.lost += 1
                self._losing.set()
            server.sendall(asked)
        server.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while answered := server.recv(_CHUNK):
                if self._losing.is_set():
                    self._losing.clear()
                    break
                client.sendall(answered)
            client.shutdown(socket.SHUT_RDWR)
