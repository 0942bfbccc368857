"""A client of sandboxd in the standard library: one connection, one request at a time.

    python3 examples/raw_socket.py

The socket is $SANDBOXD_SOCKET, or the default one. A second thread, or an `events.watch`, needs a connection of its own.
"""

import json
import os
import socket
import uuid


class Sandboxd:
    """One connection to the service. Leases that belong to the connection end with it."""

    def __init__(self, path=os.environ.get("SANDBOXD_SOCKET", "/run/sandboxd/sandboxd.sock")):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile(encoding="utf-8")
        self.id = 0

    def call(self, method, on_notification=lambda method, params: None, **params):
        """Sends a request, passes its notifications to `on_notification`, and returns its result."""
        self.id += 1
        request = {"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        for line in self.lines:
            message = json.loads(line)
            if "method" in message:  # a notification: its params name the request
                if message["params"]["id"] == self.id:
                    on_notification(message["method"], message["params"])
            elif "error" in message:
                raise RuntimeError(message["error"])
            else:
                return message["result"]
        raise ConnectionError("the service closed the connection")


def print_output(method, params):
    if method == "sandbox.output":  # text, or base64 where the bytes are not UTF-8
        print(params["stream"], params.get("text", "").strip(), flush=True)


def main():
    service = Sandboxd()
    chat = str(uuid.uuid4())
    sandbox = service.call("sandbox.create", chat_id=chat, agent_id="coder")
    print(sandbox["outcome"], sandbox["status"])

    # The lease moves the end of the sandbox until the release.
    lease = service.call("sandbox.lease", chat_id=chat, duration=600)
    command = "for i in 1 2 3; do echo $i; sleep 0.1; done"
    ended = service.call("sandbox.exec", print_output, chat_id=chat, command=command, stream=True, timeout=10)
    print("exit code", ended["exit_code"])
    service.call("sandbox.release", chat_id=chat, lease_id=lease["lease_id"])
    service.call("sandbox.delete", chat_id=chat)


if __name__ == "__main__":
    main()
