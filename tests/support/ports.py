"""Finds ports for servers that need a fixed one."""

import random
import socket


def free_port() -> int:
    """Return a port that nobody listens on, below those that the system hands out itself: until it is used, no other
    test gets it that way.
    """
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
