"""Sessions of PostgreSQL."""

import pytest
from django.db import connection

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def test_a_new_session_compiles_no_query_even_if_its_first_transaction_is_undone() -> None:
    connection.close()
    connection.set_autocommit(False)
    connection.rollback()
    connection.set_autocommit(True)
    with connection.cursor() as cursor:
        cursor.execute("SHOW jit")
        assert cursor.fetchone() == ("off",)
