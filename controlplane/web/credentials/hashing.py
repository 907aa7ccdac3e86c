"""Hashing of passwords, one at a time: many logins at once do not use up a server's memory."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.contrib.auth.hashers import Argon2PasswordHasher

NICE = 10
"""Niceness of the hashing thread, which Linux counts by thread: pages and API go first."""

# Hashing has a thread of its own: the allocator keeps memory that a thread has used, so that each
# thread that hashed once would hold it for ever.
_THREAD = ThreadPoolExecutor(
    1, thread_name_prefix="passwords", initializer=os.nice, initargs=(NICE,)
)


class BoundedArgon2(Argon2PasswordHasher):
    """Argon2id with the parameters of OWASP's Password Storage Cheat Sheet, one at a time.

    A hash with other parameters is verified with its own, and renewed at the next login.
    """

    time_cost = 2
    memory_cost = 19_456
    parallelism = 1

    def encode(self, *args: Any, **kwargs: Any) -> str:
        return _THREAD.submit(super().encode, *args, **kwargs).result()

    def verify(self, *args: Any, **kwargs: Any) -> bool:
        return _THREAD.submit(super().verify, *args, **kwargs).result()
