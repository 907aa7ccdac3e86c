"""Validator that refuses easy passwords, judged by zxcvbn and by words of the user and the site."""

import re
import threading

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

LEAST_SCORE = 3
"""zxcvbn's score, of 0 to 4, of passwords that take more than 10^8 guesses."""

JUDGED_CHARACTERS = 32
"""Characters that zxcvbn judges: it takes up to 0.4 s for 32 of them, and 2.4 s for 72."""

SHORTEST_WORD = 3
"""Shorter words of the user are parts of too many good passwords."""

SITE_WORDS = ("loadmaster", "password", "passwort", "willkommen", "welcome")
"""Words that users of this site take for passwords."""

BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_]{3})[\W_](?=[^\W\d_]{3})")
"""A sign between two words. zxcvbn rates it as a separate guess, so `ada.ada` looks too good."""

_zxcvbn_lock = threading.Lock()
"""One thread at a time: zxcvbn keeps the user's words in a global dictionary."""


class NotGuessable:
    """Validator of Django: refuse passwords of common words, names, dates and rows of keys."""

    def validate(self, password: str, user: User | None = None) -> None:
        """Raise ValidationError if the password, or it without signs, is easy to guess."""
        from zxcvbn import zxcvbn  # 11 MB of word lists, which most processes never need

        judged = password[:JUDGED_CHARACTERS]
        words = personal_words(user)
        with _zxcvbn_lock:
            as_written = zxcvbn(judged, user_inputs=words)
            without_signs = zxcvbn(BETWEEN_WORDS.sub("", judged), user_inputs=words)
        result = min(as_written, without_signs, key=lambda judgement: judgement["guesses"])
        if result["score"] >= LEAST_SCORE:
            return
        cause = result["feedback"]["warning"].rstrip(".")
        in_brackets = f" ({cause})" if cause else ""
        raise ValidationError(
            f"This password is easy to guess{in_brackets}. Take four unrelated words instead.",
            code="password_guessable",
        )

    def get_help_text(self) -> str:
        return "It may not be easy to guess: four unrelated words are good."


def personal_words(user: User | None) -> list[str]:
    """Return words that an attacker tries first: of the site, and of the user's names and teams."""
    # 1. Names as they are. A user who is not saved yet has no teams.
    texts = [*SITE_WORDS, *settings.ALLOWED_HOSTS]
    if user is not None:
        texts += [user.get_username(), user.first_name, user.last_name, user.email]
    if user is not None and user.pk is not None:
        texts += user.teams.values_list("name", flat=True)  # of jobs/

    # 2. The words in them too, each word once.
    words = list(texts)
    for text in texts:
        words += re.split(r"[\W_\d]+", text)
    unique = dict.fromkeys(words)
    return [word for word in unique if len(word) >= SHORTEST_WORD]
