"""Password validator: refuses what is guessed soon, by zxcvbn and the words of person and site."""

import re
import threading

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

LEAST_SCORE = 3
"""zxcvbn's score of passwords that take more than 10^8 guesses; its scores go from 0 to 4."""

JUDGED_CHARACTERS = 32
"""zxcvbn sees this many: its time grows fast with the length, to 0.4 s here and 2.4 s at 72."""

SHORTEST_WORD = 3
SITE_WORDS = ("loadmaster", "password", "passwort", "willkommen", "welcome")

BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_]{3})[\W_](?=[^\W\d_]{3})")
"""A sign between words: zxcvbn counts it as a guess of its own, so that `ada.ada` looks good."""

_judging = threading.Lock()
"""zxcvbn keeps the person's words in a dictionary of its module."""


class NotGuessable:
    """Refuse passwords of common words, names, dates, repeats and rows of keys."""

    def validate(self, password: str, user: User | None = None) -> None:
        from zxcvbn import zxcvbn  # 11 MB of word lists, which most processes never need

        judged = password[:JUDGED_CHARACTERS]
        words = personal_words(user)
        with _judging:
            as_written = zxcvbn(judged, user_inputs=words)
            without_signs = zxcvbn(BETWEEN_WORDS.sub("", judged), user_inputs=words)
        result = min(as_written, without_signs, key=lambda judgement: judgement["guesses"])
        if result["score"] >= LEAST_SCORE:
            return
        cause = result["feedback"]["warning"].rstrip(".")
        because = f" ({cause})" if cause else ""
        raise ValidationError(
            f"This password is easy to guess{because}. Take four unrelated words instead.",
            code="password_guessable",
        )

    def get_help_text(self) -> str:
        return "It may not be easy to guess: four unrelated words are good."


def personal_words(user: User | None) -> list[str]:
    """Words that an attacker of this person tries first: of the site, the name, mail and teams."""
    texts = [*SITE_WORDS, *settings.ALLOWED_HOSTS]
    if user is not None:
        texts += [user.get_username(), user.first_name, user.last_name, user.email]
    if user is not None and user.pk is not None:
        teams = user.teams.values_list("name", flat=True)  # of jobs/
        texts += teams
    words = dict.fromkeys(texts)
    for text in texts:
        words.update(dict.fromkeys(re.split(r"[\W_\d]+", text)))
    return [word for word in words if len(word) >= SHORTEST_WORD]
