"""One line in the log when kvistd goes, one when it is back."""

import logging
import time

from kvist.client import Client, Connection
from kvist.status import KvistError

# How soon the log tells of it.
_LOOK_EVERY_S = 0.2


class Watch:
    """Whether a kvistd serves `client`, as of the last look. Used by one thread."""

    def __init__(self, client: Client, logger: logging.Logger) -> None:
        self._client = client
        self._logger = logger
        self._look_again = 0.0
        self.connected = True

    def look(self) -> None:
        """Costs nothing when it was looked a moment ago."""
        now = time.monotonic()
        if now < self._look_again:
            return
        self._look_again = now + _LOOK_EVERY_S
        connected = self._client.connection == Connection.CONNECTED
        if connected == self.connected:
            return
        self.connected = connected
        if connected:
            self._logger.info("kvistd serves this engine")
            return
        try:
            self._client.wait_connected(0.001)
        except KvistError as error:
            self._logger.warning(
                "no kvistd serves this engine, which computes all KV itself until one does: %s", error.message
            )
