"""Secrets of teams: encrypted at rest, delivered only to agents that accept a job with them.

The first key of LOADMASTER_SECRETS_KEY (Fernet keys, separated by commas) encrypts; the others, and
those derived from SECRET_KEY and SECRET_KEY_FALLBACKS, still decrypt.
"""

import base64
import os
from collections.abc import Mapping

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import transaction

from controlplane.audit.record import record
from jobs.models import Secret, Team
from jobs.submission.validation import JobInvalid

MAX_SECRET = 32_768
"""Most characters of a secret."""


class SecretMissing(Exception):
    """Secret that is missing or that no key decrypts."""


def set_secret(team: Team, name: str, value: object) -> Secret:
    """Create or replace a team's secret. Raises JobInvalid for a bad name or value."""
    if not isinstance(value, str) or not value or len(value) > MAX_SECRET or "\0" in value:
        raise JobInvalid({"value": [f"must be text of 1 to {MAX_SECRET} characters without NUL"]})
    secret = Secret(team=team, name=name)
    try:
        secret.clean_fields(exclude=["ciphertext", "team"])
        ciphertext = _fernet().encrypt(value.encode())
    except ValidationError:
        raise JobInvalid(
            {"name": ["must begin with a letter and have at most 63 letters, digits, _ and -"]}
        ) from None
    except UnicodeEncodeError:
        raise JobInvalid({"value": ["must be valid Unicode text"]}) from None
    with transaction.atomic():
        values = {"ciphertext": ciphertext}
        row, is_new = Secret.objects.update_or_create(team=team, name=name, defaults=values)
        record("secret.add" if is_new else "secret.change", row, team=team)
    return row


def delete_secret(team: Team, name: str) -> bool:
    """Remove a secret; return True if there was one."""
    # A NUL would be an error of the database, not a name that is not there.
    row = None if "\0" in name else Secret.objects.filter(team=team, name=name).first()
    if row is None:
        return False
    with transaction.atomic():
        record("secret.delete", row, team=team)
        row.delete()
    return True


def reveal(secret: Secret) -> str:
    """Return the value in clear, never logged. Raises SecretMissing if no key decrypts it."""
    try:
        return _fernet().decrypt(bytes(secret.ciphertext)).decode()
    except InvalidToken:
        raise SecretMissing(
            f"secret {secret} cannot be opened with this server's key; set it again"
        ) from None


def reveal_references(team: Team, environment: Mapping[str, object]) -> dict[str, str]:
    """Return the values in clear of a job's variables that refer to secrets, by variable.

    The value of such a variable is {"secret": NAME}. Raises SecretMissing.
    """
    # 1. Names of secrets by variable.
    secret_names: dict[str, str] = {}
    for variable, value in environment.items():
        if isinstance(value, dict):
            secret_names[variable] = str(value["secret"])

    # 2. The team's secrets of these names. All must be there before any is decrypted.
    rows = Secret.objects.filter(team=team, name__in=set(secret_names.values()))
    secrets = {secret.name: secret for secret in rows}
    for variable, name in secret_names.items():
        if name not in secrets:
            raise SecretMissing(f"{variable}: team {team} has no secret {name}")
    return {variable: reveal(secrets[name]) for variable, name in secret_names.items()}


def rotate() -> tuple[int, list[Secret]]:
    """Encrypt all secrets with the first key.

    Return the number of encrypted ones, and those that no key decrypts, which stay as they are.
    """
    fernet = _fernet()
    rotated = 0
    undecryptable = []
    for pk in Secret.objects.order_by("pk").values_list("pk", flat=True):
        with transaction.atomic():
            secret = Secret.objects.select_for_update().filter(pk=pk).first()
            if secret is None:
                continue
            try:
                ciphertext = fernet.rotate(bytes(secret.ciphertext))
                Secret.objects.filter(pk=pk).update(ciphertext=ciphertext)
                rotated += 1
            except InvalidToken:
                undecryptable.append(secret)
    counts = {"rotated": rotated, "closed": len(undecryptable)}
    record("secret.rotate", "all secrets", new=counts)
    return rotated, undecryptable


def given_keys() -> list[Fernet]:
    """Return the keys of LOADMASTER_SECRETS_KEY in order. Raises ImproperlyConfigured."""
    keys = os.environ.get("LOADMASTER_SECRETS_KEY", "").split(",")
    try:
        return [Fernet(key.strip()) for key in keys if key.strip()]
    except ValueError:
        raise ImproperlyConfigured(
            "LOADMASTER_SECRETS_KEY must be 32 bytes in url-safe base64, or several with commas"
        ) from None


def _fernet() -> MultiFernet:
    """Return what encrypts with the first key, and decrypts with all keys."""
    keys = given_keys()
    for secret_key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        keys.append(_derived_key(secret_key))
    return MultiFernet(keys)


def _derived_key(secret_key: str) -> Fernet:
    """Return the key for secrets that is derived from one of Django's keys."""
    kdf = HKDF(SHA256(), 32, salt=None, info=b"loadmaster team secrets 1")
    return Fernet(base64.urlsafe_b64encode(kdf.derive(secret_key.encode())))
