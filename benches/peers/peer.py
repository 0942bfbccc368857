"""A manager of containers in Python that takes commands line by line, so that the interpreter's start is not measured.

    peer.py docker-py|llm-sandbox IMAGE NETWORK LABELS

Standard input takes `start DIRECTORY`, answered by `HANDLE ADDRESS` once the manager reports the container, and
`end HANDLE`, answered by `ended`. The first line of output says that the manager is ready. An error is answered by
`failed: WHY`.
"""

import json
import sys
import time

import docker

COMMAND = ["httpd", "-f", "-p", "8080", "-h", "/volume"]


class DockerPy:
    """The calls of a service written with docker-py: run, reload, read the address."""

    def __init__(self, client, image, network, labels):
        self.client, self.image, self.network, self.labels = client, image, network, labels

    def start(self, directory):
        container = self.client.containers.run(
            self.image,
            COMMAND,
            detach=True,
            network=self.network,
            labels=self.labels,
            volumes={directory: {"bind": "/volume", "mode": "rw"}},
        )
        container.reload()
        return container.id, address(container)

    def end(self, handle):
        self.client.containers.get(handle).remove(force=True)

    def close(self):
        pass


class LlmSandbox:
    """A pool keeps started containers. A session takes one, copies the chat's file into it and starts the server."""

    def __init__(self, client, image, network, labels):
        from llm_sandbox.pool import ExhaustionStrategy, PoolConfig, create_pool_manager

        # A chat must not find files of another, so each container is used once.
        config = PoolConfig(
            max_pool_size=4,
            min_pool_size=1,
            max_container_uses=1,
            exhaustion_strategy=ExhaustionStrategy.WAIT,
            acquisition_timeout=60,
        )
        self.sessions = {}
        self.pool = create_pool_manager(
            backend="docker",
            config=config,
            client=client,
            lang="python",
            image=image,
            # Neither pip nor a virtual environment: there are no packages to install.
            skip_environment_setup=True,
            # With an init; otherwise each stop would last until its time-out.
            runtime_configs={"network": network, "labels": labels, "init": True},
        )
        self.wait_for_spare()

    def wait_for_spare(self):
        deadline = time.monotonic() + 60
        while not any(container.is_available() for container in list(self.pool._pool)):
            if time.monotonic() > deadline:
                raise RuntimeError("its pool stays empty")
            time.sleep(0.02)

    def start(self, directory):
        from llm_sandbox import SandboxSession

        session = SandboxSession(pool=self.pool, lang="python")
        session.open()
        session.copy_to_runtime(f"{directory}/index.html", "/volume/index.html")
        session.execute_command("httpd -p 8080 -h /volume")
        container = session.backend_session.container
        self.sessions[container.id] = session
        return container.id, address(container)

    def end(self, handle):
        self.sessions.pop(handle).close()
        # The next start must find a ready container, as a pool promises.
        self.wait_for_spare()

    def close(self):
        self.pool.close()


def address(container):
    (network,) = container.attrs["NetworkSettings"]["Networks"].values()
    return network["IPAddress"]


def answer(text):
    print(text, flush=True)


def main():
    kind, image, network, labels = sys.argv[1:]
    manager = {"docker-py": DockerPy, "llm-sandbox": LlmSandbox}[kind]
    try:
        manager = manager(docker.from_env(), image, network, json.loads(labels))
    except Exception as error:
        answer(f"failed: {error!r}")
        return
    answer("ready")
    for line in sys.stdin:
        verb, argument = line.rstrip("\n").split(" ", 1)
        try:
            answer(" ".join(manager.start(argument)) if verb == "start" else manager.end(argument) or "ended")
        except Exception as error:
            answer(f"failed: {error!r}")
    manager.close()


if __name__ == "__main__":
    main()
