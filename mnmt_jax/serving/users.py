"""Users of the server: those of API keys, and addresses without one."""

from __future__ import annotations

import contextlib
import dataclasses

from mnmt_jax.serving.api_keys import ApiKey, ApiKeys
from mnmt_jax.serving.database import Database
from mnmt_jax.serving.usage import Usage


class KeyRequired(Exception):
    """A request has no API key, and the server requires one."""


class KeyRefused(Exception):
    """A request has an API key that is unknown or revoked."""


@dataclasses.dataclass(frozen=True)
class User:
    """The sender of a request.

    Attributes:
        address: of the client.
        key: its valid API key; None if it has none.
    """

    address: str
    key: ApiKey | None = None

    @property
    def name(self) -> str:
        """Name of the queue of the user's lines: one for each key, or for each address."""
        return f"key {self.key.id}" if self.key else self.address

    @property
    def owner(self) -> str:
        """Owner of what the user stores: the id of the key; empty without one."""
        return self.key.id if self.key else ""


class Users:
    """Users, their keys and what they have used.

    Args:
        database: keys and usage.
        require_keys: whether requests without a key are refused.
    """

    def __init__(self, database: Database, *, require_keys: bool) -> None:
        self._keys, self._usage = ApiKeys(database), Usage(database)
        self._require_keys = require_keys

    def identify(self, key: str, address: str) -> User:
        """Return the user of a request.

        Args:
            key: API key; empty if there is none. Unless keys are required, unknown ones are
                ignored, because some clients cannot leave them out.
            address: of the client.

        Raises:
            KeyRequired: if there is no key.
            KeyRefused: if the key is not valid.
            DatabaseError: if the database cannot be read.
        """
        valid = self._keys.find(key) if key else None
        if valid is None and self._require_keys:
            raise KeyRefused if key else KeyRequired
        return User(address, valid)

    def used(self, user: User) -> tuple[int, int | None]:
        """Return the characters of this month and their limit, None if there is none."""
        return self._usage.used(user.owner), _quota(user)

    def charge(self, user: User, characters: int) -> contextlib.AbstractContextManager[None]:
        """Count characters, and take them back if the block raises.

        Raises:
            QuotaExceeded: if the user may not have as many.
        """
        return self._usage.charge(user.owner, characters, _quota(user))

    def stop(self) -> None:
        """Store the usage."""
        self._usage.stop()


def _quota(user: User) -> int | None:
    return user.key.characters_per_month if user.key else None
