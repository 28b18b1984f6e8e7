"""Connect stdin and stdout to a TCP server: `python -I -S pipe.py ADDRESS PORT`; needs no labkit."""

import os
import socket
import sys
import threading

CHUNK = 1 << 18


def main(address: str, port: int) -> None:
    """Copy in both directions until the server closes its side."""
    server = socket.create_connection((address, port))
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def up() -> None:
        try:
            while data := os.read(0, CHUNK):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
        except OSError:
            os._exit(1)

    threading.Thread(target=up, daemon=True).start()
    while data := server.recv(CHUNK):
        while data:
            data = data[os.write(1, data) :]


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except OSError as error:
        print(f"{sys.argv[1]}:{sys.argv[2]}: {error.strerror}", file=sys.stderr)
        os._exit(1)
    os._exit(0)
