"""Submissions of one web process, taken in by batches: those that come in while one is written form
the next.

Each is answered after the commit that holds its job. What a batch is held against of clusters and
nodes may be a second old; people and their teams are read for every batch, and who is refused by a
batch is heard again alone, by the newest state.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hmac import compare_digest

from django.contrib.auth.models import User
from django.utils import timezone
from knox.crypto import hash_token
from knox.models import get_token_model
from knox.settings import CONSTANTS
from rest_framework.renderers import JSONRenderer

from controlplane.web.http.group_commit import Gatherer, Threads
from jobs.rest.answers import bodies
from jobs.submission.limits import Ground
from jobs.submission.submit import Asked, Submission, submit_all

MOST = 200
WAITING = 2000
PAUSE_S = 0.004
GROUND_LIVES_S = 1.0

THREADS = Threads("submissions", 1)


@dataclass(frozen=True, slots=True)
class Letter:
    """A submission as it came: the bearer's token, the parsed body, its idempotency key."""

    token: str
    data: object
    key: str | None


@dataclass(frozen=True, slots=True)
class Taken:
    """The body of the answer to a job that is made and committed, and the key of its user."""

    body: bytes
    user: int


class Crowd:
    """The short way of submissions through a web process."""

    def __init__(self) -> None:
        self._gatherer: Gatherer[Letter, Taken | None] = Gatherer(
            self._together, pause_s=PAUSE_S, most=MOST, waiting=WAITING
        )
        self._ground, self._since_s = Ground(), 0.0

    async def take(self, letter: Letter) -> Taken | None:
        """What is answered once the job is committed; None for what has to go the long way. Raises
        OverloadedError.
        """
        return await self._gatherer.ask(letter)

    async def _together(self, letters: Sequence[Letter]) -> list[Taken | None]:
        return await THREADS.run(self.take_all, letters)

    def take_all(self, letters: Sequence[Letter]) -> list[Taken | None]:
        """The answers to a batch, in its order."""
        users = users_of({letter.token for letter in letters})
        known = [i for i, letter in enumerate(letters) if letter.token in users]
        answers = submit_all(
            [Asked(users[letters[i].token], letters[i].data, letters[i].key) for i in known],
            self._fresh_ground(users.values()),
        )
        made = {
            i: a
            for i, a in zip(known, answers, strict=True)
            if isinstance(a, Submission) and a.created
        }
        rows = zip(made, bodies(list(made.values())), strict=True)
        taken = {i: Taken(JSONRenderer().render(row), made[i].job.user_id) for i, row in rows}
        return [taken.get(i) for i in range(len(letters))]

    def _fresh_ground(self, users: Iterable[User]) -> Ground:
        if time.monotonic() - self._since_s > GROUND_LIVES_S:
            self._ground, self._since_s = Ground(), time.monotonic()
        self._ground.meet(users)
        return self._ground


def users_of(tokens: Iterable[str]) -> dict[str, User]:
    """The users of those tokens that are valid now: known, not expired, of an active user. One
    query.
    """
    digests = {token: hash_token(token) for token in tokens}
    prefixes = {token[: CONSTANTS.TOKEN_KEY_LENGTH] for token in digests}
    rows = list(
        get_token_model()
        .objects.filter(token_key__in=prefixes, user__is_active=True)
        .select_related("user")
    )
    now, found = timezone.now(), dict[str, User]()
    for token, digest in digests.items():
        for row in rows:
            if compare_digest(digest, row.digest) and (row.expiry is None or row.expiry > now):
                found[token] = row.user
    return found
