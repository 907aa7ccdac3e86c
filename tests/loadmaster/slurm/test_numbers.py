"""Numbers of jobs."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.slurm.numbers import NUMBER_BITS, ids_of, is_number_of, job_number


@given(st.uuids(version=4))
def test_a_number_is_positive_and_leads_back_to_the_id(job: UUID) -> None:
    number = job_number(job)
    assert 0 < number < 2**NUMBER_BITS
    assert number == job_number(str(job))
    least, greatest = ids_of(str(number)) or (job, UUID(int=0))
    assert least <= job <= greatest
    assert job_number(least) == job_number(greatest) == number
    assert is_number_of(str(job), str(number))


def test_other_texts_are_the_number_of_no_job() -> None:
    texts = ["", "0", "-1", "1.0", "x", "9" * 19, "9" * 30, "\u0661"]
    assert [ids_of(text) for text in texts] == [None] * len(texts)
