"""Words of a text are those that `shlex` reads."""

import shlex
from collections.abc import Callable
from time import thread_time

from hypothesis import given
from hypothesis import strategies as st

from loadmaster import shell_words

TEXTS = st.text(st.sampled_from("ab'\"\\# \t\r\n\u00a0é=-")) | st.text()


def words_of(read: Callable[..., list[str]], text: str, *, comments: bool) -> list[str] | None:
    """Words, None for a text that is refused."""
    try:
        return read(text, comments=comments)
    except ValueError:
        return None


@given(TEXTS)
def test_any_text_has_the_words_that_shlex_finds(text: str) -> None:
    found = words_of(shell_words.split, text, comments=False)
    assert found == words_of(shlex.split, text, comments=False)


@given(TEXTS.map(lambda text: text.replace("\n", "")))
def test_a_comment_ends_a_line_as_for_shlex(text: str) -> None:
    found = words_of(shell_words.split, text, comments=True)
    assert found == words_of(shlex.split, text, comments=True)


def test_a_word_of_2_mb_takes_no_square_of_its_time() -> None:
    began_s = thread_time()
    assert shell_words.split("a" * 2_000_000) == ["a" * 2_000_000]
    assert thread_time() - began_s < 2  # shlex takes 19 s
