"""Scripts keep their bytes, whatever their encoding is."""

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.slurm.scripts.script_bytes import bytes_of, text_of

LATIN = "#!/bin/sh\n# café\necho Größe\n".encode("latin-1")


@given(st.binary() | st.text().map(str.encode) | st.text("\uef80\uefffä").map(str.encode))
def test_bytes_come_back_as_they_were(data: bytes) -> None:
    text = text_of(data)
    assert bytes_of(text) == data
    assert text.encode().decode() == text


def test_text_in_utf8_stays_as_it_is() -> None:
    assert text_of("Größe €".encode()) == "Größe €"


def test_latin_1_is_plain_text_on_its_way() -> None:
    assert text_of(LATIN).splitlines()[2] == "echo Gr\ueff6\uefdfe"
    assert bytes_of(text_of(LATIN)) == LATIN
