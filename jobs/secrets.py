"""Secrets of teams: encrypted at rest, shown to nobody, delivered only to an agent that accepts a job which refers to them.

The key is LOADMASTER_SECRETS_KEY (a Fernet key), else derived from SECRET_KEY: whoever changes SECRET_KEY sets the secrets anew.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, ValidationError

from jobs.models import Secret, Team
from jobs.validation import JobInvalid

MAX_SECRET = 32_768


class SecretMissing(Exception):
    """A job refers to a secret that is not there any more, or that this key cannot open."""


def set_secret(team: Team, name: str, value: object) -> Secret:
    """Make or replace a team's secret. Raises JobInvalid for a name or value that does not do."""
    if not isinstance(value, str) or not value or len(value) > MAX_SECRET or "\0" in value:
        raise JobInvalid({"value": [f"must be text of 1 to {MAX_SECRET} characters without NUL"]})
    secret = Secret(team=team, name=name)
    try:
        secret.clean_fields(exclude=["ciphertext", "team"])
        ciphertext = _fernet().encrypt(value.encode())
    except ValidationError:
        raise JobInvalid({"name": ["must begin with a letter and have at most 63 letters, digits, _ and -"]}) from None
    except UnicodeEncodeError:
        raise JobInvalid({"value": ["must be valid Unicode text"]}) from None
    return Secret.objects.update_or_create(team=team, name=name, defaults={"ciphertext": ciphertext})[0]


def delete_secret(team: Team, name: str) -> bool:
    """Remove a secret; whether there was one."""
    # A NUL would be an error of the database, not a name that is not there.
    return "\0" not in name and bool(Secret.objects.filter(team=team, name=name).delete()[0])


def reveal(secret: Secret) -> str:
    """The value in clear. Raises SecretMissing where the key does not open it; the value never reaches a log or an error."""
    try:
        return _fernet().decrypt(bytes(secret.ciphertext)).decode()
    except InvalidToken:
        raise SecretMissing(f"secret {secret} cannot be opened with this server's key; set it again") from None


def reveal_references(team: Team, environment: Mapping[str, object]) -> dict[str, str]:
    """The variables of a job's environment that refer to secrets, in clear, for the agent that starts it.

    Raises SecretMissing naming the variable whose secret has gone.
    """
    wanted = {name: str(value["secret"]) for name, value in environment.items() if isinstance(value, dict)}
    secrets = {s.name: s for s in Secret.objects.filter(team=team, name__in=set(wanted.values()))}
    for variable, name in wanted.items():
        if name not in secrets:
            raise SecretMissing(f"{variable}: team {team} has no secret {name}")
    return {variable: reveal(secrets[name]) for variable, name in wanted.items()}


def _fernet() -> Fernet:
    given = os.environ.get("LOADMASTER_SECRETS_KEY", "")
    if not given:
        derived = HKDF(SHA256(), 32, salt=None, info=b"loadmaster team secrets 1").derive(settings.SECRET_KEY.encode())
        return Fernet(base64.urlsafe_b64encode(derived))
    try:
        return Fernet(given)
    except ValueError:
        raise ImproperlyConfigured("LOADMASTER_SECRETS_KEY must be 32 bytes in url-safe base64") from None
