"""Settings: differences between installations come from the environment; see docs/settings.md."""

import os
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import environ
from csp.constants import NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key
from django.templatetags.static import static

from controlplane import environment
from controlplane.web.logs import structured as logs
from loadmaster.files import close_to_others

env = environ.Env()
_whole = partial(environment.whole, os.environ)
_amount = partial(environment.amount, os.environ)
_switch = partial(environment.switch, os.environ)

BASE_DIR = Path(__file__).resolve().parent.parent
LOADMASTER_HOME = Path(env.str("LOADMASTER_HOME", str(BASE_DIR / ".loadmaster"))).resolve()
LOADMASTER_HOME.mkdir(mode=0o700, parents=True, exist_ok=True)
close_to_others(LOADMASTER_HOME)

DEBUG = _switch("LOADMASTER_DEBUG")


def _secret_key() -> str:
    """Key of the environment, else a generated one beside the embedded database (0600)."""
    key: str = env.str("SECRET_KEY", "")
    if key:
        return key
    if env.str("DATABASE_URL", ""):
        raise ImproperlyConfigured(
            "SECRET_KEY must be set where DATABASE_URL is: several processes must share one"
            " secret key"
        )
    path = LOADMASTER_HOME / "secret_key"
    try:
        with path.open("x") as file:
            path.chmod(0o600)
            file.write(get_random_secret_key())
    except FileExistsError:
        pass
    return path.read_text()


SECRET_KEY = _secret_key()
SECRET_KEY_FALLBACKS: list[str] = env.list("SECRET_KEY_FALLBACKS", default=[])
ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    # First, so that its commands come before Django's.
    "controlplane.operations",
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "knox",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "django_celery_beat",
    "axes",
    "csp",
    "controlplane",
    "controlplane.audit",
    "controlplane.web",
    "clusters",
    "jobs",
    "profiling",
    "controlplane.accounting",
    "controlplane.execution",
    "controlplane.loop",
    "controlplane.studies",
]

MIDDLEWARE = [
    "controlplane.web.logs.middleware.RequestLog",
    "controlplane.web.http.storage_errors.StorageFailures",
    "controlplane.web.http.middleware.BodyLimit",
    "django.middleware.security.SecurityMiddleware",
    "controlplane.web.http.middleware.StaticFiles",
    "controlplane.web.http.middleware.ContentSecurityPolicy",
    "controlplane.web.http.middleware.SecurityHeaders",
    "controlplane.web.http.middleware.NoNul",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "controlplane.web.http.throttling.Throttle",
    "controlplane.audit.origin.Audited",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "controlplane.web.credentials.change_first.ChangeFirst",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"
ASGI_APPLICATION = "controlplane.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.web.http.server_disk.low_disk",
                "jobs.pages.teams.rights",
            ],
            "builtins": ["controlplane.web.templatetags.loadmaster"],
        },
    }
]

_own = env.db_url("DATABASE_URL") if env.str("DATABASE_URL", "") else None
DATABASES = {"default": environment.database(_own) if _own else environment.sqlite(LOADMASTER_HOME)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

VALKEY_SOCKET = env.str("VALKEY_SOCKET", str(environment.socket_path(LOADMASTER_HOME)))
REDIS_URL = env.str("REDIS_URL", "")
_BROKER = REDIS_URL or f"unix://{VALKEY_SOCKET}"
_CACHE = env.str("LOADMASTER_CACHE_URL", "") or environment.cache_location(_BROKER)
_REDIS_CA = env.str("LOADMASTER_REDIS_CA", "")
CACHES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "controlplane.web.storage.shared_cache.SharedRedisCache",
        "LOCATION": environment.cache_address(_CACHE),
        "OPTIONS": {
            "serializer": "controlplane.web.storage.shared_cache.JsonSerializer",
            **environment.tls_options(_CACHE, _REDIS_CA),
        },
        # Before 2 values were pickles, which nothing reads any more.
        "VERSION": 2,
    },
    "process": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}

CELERY_BROKER_URL = environment.broker_address(_BROKER)
CELERY_BROKER_USE_SSL = environment.tls_options(_BROKER, _REDIS_CA) or None
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_DEFAULT_QUEUE = "loadmaster"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TIMEZONE = "UTC"
# visibility_timeout stays above the solver's hard limit; the two `unacked` settings bring a killed
# worker's task back in seconds. A broker that is cut off or frozen says nothing: without timeouts
# whoever sends a hint would wait for it without end, and one thread of a web process sends those of
# all submissions.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 900,
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
}
_EVERY_S = {
    "periodic_rounds": 5.0,
    "meter_energy": 10.0,
    "prune_old": 3600.0,
    "write_samples": 2.0,
    "reconcile": 2.0,
}
CELERY_BEAT_SCHEDULER = "controlplane.operations.schedule:BootScheduler"
CELERY_BEAT_SCHEDULE = {
    task: {"task": f"controlplane.operations.tasks.{task}", "schedule": every_s}
    for task, every_s in _EVERY_S.items()
}
WEB_CONCURRENCY = _whole("WEB_CONCURRENCY", 1, least=1)
"""Web processes of `make up`; deploy/entrypoint reads the variable itself (default 2)."""
# Requests at once, in each web process: of a user, and of an address without a known login; and
# event streams of live pages of a user.
REQUESTS_PER_USER = _whole("LOADMASTER_REQUESTS_PER_USER", 32, least=1)
REQUESTS_PER_ADDRESS = _whole("LOADMASTER_REQUESTS_PER_ADDRESS", 64, least=1)
STREAMS_PER_USER = _whole("LOADMASTER_STREAMS_PER_USER", 16, least=1)
# Free room below which a node takes nothing new, and below which pages warn of the server's disk.
NODE_LEAST_FREE_GB = _amount("LOADMASTER_NODE_LEAST_FREE_GB", 1.0)
SERVER_LEAST_FREE_GB = _amount("LOADMASTER_SERVER_LEAST_FREE_GB", 1.0)
SOLVER_TIMEOUT_S = _amount("LOADMASTER_SOLVER_TIMEOUT_S", 60.0, positive=True)
ROUND_JOBS = _whole("LOADMASTER_ROUND_JOBS", 4000, least=1)
# Jobs that wait or are held of a team without a limit of its own; 0: any number.
MAX_QUEUED_JOBS = _whole("LOADMASTER_MAX_QUEUED_JOBS", 50_000)

# Simulations: where they work, how many at once, and what one of them may take.
SIMULATIONS_DIR = Path(env.str("LOADMASTER_SIMULATIONS_DIR", str(LOADMASTER_HOME / "simulations")))
SIMULATIONS_AT_ONCE = _whole("LOADMASTER_SIMULATIONS", 1)
SIMULATION_PROCESSES = _whole("LOADMASTER_SIMULATION_PROCESSES", 1)
SIMULATION_MEMORY_GB = _amount("LOADMASTER_SIMULATION_MEMORY_GB", 4.0)
SIMULATION_LIMIT_S = 3600 * _amount("LOADMASTER_SIMULATION_HOURS", 6.0, positive=True)
WHAT_IF_TIMEOUT_S = _amount("LOADMASTER_WHAT_IF_TIMEOUT_S", 20.0, positive=True)

AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AXES_HANDLER = "controlplane.web.credentials.lockouts.AuditedLockouts"
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False
# Failures and the seconds within which they are counted, by address and by account, on top of axes'
# lock of both together.
THROTTLES = {"login:address": (30, 300), "login:account": (60, 900), "enrolment:address": (30, 300)}
AXES_LOCKOUT_TEMPLATE = "registration/locked.html"
PASSWORD_HASHERS = [
    "controlplane.web.credentials.hashing.BoundedArgon2",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 10},
    },
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "controlplane.web.credentials.strength.NotGuessable"},
    {"NAME": "controlplane.web.credentials.passwords.EndOfTokens"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "queue"
LOGOUT_REDIRECT_URL = "login"

REST_FRAMEWORK = {
    # Who calls is who opened the connection; behind a proxy uvicorn puts that right, for the
    # proxies in FORWARDED_ALLOW_IPS only.
    "NUM_PROXIES": 0,
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.web.rest.defaults.BearerAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PAGINATION_CLASS": "controlplane.web.rest.defaults.BoundedPagination",
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "EXCEPTION_HANDLER": "controlplane.web.rest.errors.exception_handler",
    "DEFAULT_PARSER_CLASSES": ["controlplane.web.rest.bodies.BoundedJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "PAGE_SIZE": 50,
}
# Lifetimes of API tokens: the default, and the longest that may be asked for.
TOKEN_DAYS = _amount("LOADMASTER_TOKEN_DAYS", 90.0, positive=True)
TOKEN_MAX_DAYS = _amount("LOADMASTER_TOKEN_MAX_DAYS", 365.0, positive=True)
if TOKEN_DAYS > TOKEN_MAX_DAYS:
    raise ImproperlyConfigured(
        f"LOADMASTER_TOKEN_DAYS: must be at most LOADMASTER_TOKEN_MAX_DAYS, {TOKEN_MAX_DAYS:g}"
    )
REST_KNOX = {
    "TOKEN_LIMIT_PER_USER": None,
    "AUTO_REFRESH": False,
    "TOKEN_TTL": timedelta(days=TOKEN_DAYS),
    "AUTH_HEADER_PREFIX": "Bearer",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Loadmaster",
    "DESCRIPTION": "Submit training jobs, follow them, and run the cluster they run on.",
    "VERSION": "1",
    "SCHEMA_PATH_PREFIX": r"/api/v1",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "controlplane.execution.protocol.openapi.describe",
        "controlplane.web.rest.openapi.complete",
    ],
    "ENUM_NAME_OVERRIDES": {
        "JobState": "jobs.rest.api.STATES",
        "NodeState": "clusters.models.nodes.State.choices",
        "NodeRole": "clusters.models.nodes.Role.choices",
        "SimulationState": "controlplane.studies.rest.serializers.STATES",
        "AssignmentState": "clusters.rest.serializers.ASSIGNMENT_STATES",
    },
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

# The largest body any endpoint takes; a larger one is answered 413 before it is read.
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = env.str("STATIC_ROOT", str(LOADMASTER_HOME / "staticfiles"))
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "controlplane.web.pages.static_files.PlotlyFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "controlplane.web.pages.static_files.StaticStorage"},
}
# Without `collectstatic` the files are served as they lie; after it, compressed, hashed and cached
# for ever.
WHITENOISE_USE_FINDERS = True
WHITENOISE_IMMUTABLE_FILE_TEST = r"^.+(\.[0-9a-f]{12}\..+|/vendor/.+)$"

_NOTHING = {name: [NONE] for name in ("default-src", "base-uri", "form-action", "frame-ancestors")}
# Our pages run our own scripts and styles only.
_STRICT = {
    **_NOTHING,
    "default-src": [SELF],
    "img-src": [SELF, "data:"],
    "object-src": [NONE],
    "form-action": [SELF],
}
CONTENT_SECURITY_POLICY = {"DIRECTIVES": _STRICT}
# The first prefix that fits a path replaces the policy: the admin's Alpine.js evaluates, the API's
# browser styles itself, and the API's answers are data that no browser should make anything of.
CONTENT_SECURITY_POLICY_BY_PREFIX = {
    "/admin/": {
        **_STRICT,
        "script-src": [SELF, UNSAFE_INLINE, UNSAFE_EVAL],
        "style-src": [SELF, UNSAFE_INLINE],
    },
    "/api/docs": {**_STRICT, "style-src": [SELF, UNSAFE_INLINE]},
    "/api/": _NOTHING,
}

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
CSRF_COOKIE_SAMESITE = "Lax"
_TLS = _switch("LOADMASTER_TLS")
SESSION_COOKIE_SECURE = _TLS
CSRF_COOKIE_SECURE = _TLS
# Browsers take cookies of this prefix over TLS from this very host alone.
_PREFIX = "__Host-" if _TLS else ""
SESSION_COOKIE_NAME = f"{_PREFIX}sessionid"
CSRF_COOKIE_NAME = f"{_PREFIX}csrftoken"
# No cookie of their own.
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
SECURE_SSL_REDIRECT = _TLS
# Asked from within, by health checks and by what gathers metrics, without TLS.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics/?$"]
SECURE_HSTS_SECONDS = _whole("LOADMASTER_HSTS_S", 31_536_000) if _TLS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = _TLS
SECURE_HSTS_PRELOAD = _TLS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _TLS else None

# The accent of our own pages, from light to dark: shade, lightness in percent, chroma.
_TEAL = (
    ("50", 97, 0.014), ("100", 93, 0.03), ("200", 87, 0.05), ("300", 79, 0.075), ("400", 70, 0.09),
    ("500", 58, 0.09),
    ("600", 50, 0.085), ("700", 44, 0.075), ("800", 37, 0.06), ("900", 30, 0.05), ("950", 22, 0.04),
)  # fmt: skip  # a table, to be read by columns
UNFOLD = {
    "SITE_TITLE": "Loadmaster",
    "SITE_HEADER": "Loadmaster",
    "SITE_SUBHEADER": "Cluster administration",
    "SITE_SYMBOL": "view_timeline",
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("favicon.svg")}
    ],
    "COLORS": {
        "primary": {shade: f"oklch({light}% {chroma} 215)" for shade, light, chroma in _TEAL}
    },
    "SHOW_HISTORY": True,
    "SHOW_BACK_BUTTON": True,
    "SIDEBAR": {"show_search": False, "show_all_applications": False},
}

# JSON lines where a database of one's own is used, text for a person's terminal otherwise.
LOG_FORMAT = env.str("LOADMASTER_LOG_FORMAT", "json" if env.str("DATABASE_URL", "") else "console")
LOGGING = logs.config(LOG_FORMAT, env.str("LOADMASTER_LOG_LEVEL", "INFO").upper())

# Whoever sends it as a bearer token may read /metrics; without it only operators may.
METRICS_TOKEN = env.str("LOADMASTER_METRICS_TOKEN", "")

KEEP_DAYS = {
    name: _amount(f"LOADMASTER_KEEP_{name.upper()}_DAYS", days)
    for name, days in environment.KEEP_DAYS.items()
}
