# The server: web, worker, beat and migrations are commands of this one image (deploy/entrypoint).
#
#   docker build -t loadmaster .
#
# BASE is any image with Python 3.11 to 3.14 and venv. Where no package index can be reached, put
# the wheels into deploy/wheels
# first, with the same Python: pip download -d deploy/wheels -c constraints.txt '.[server]'
# setuptools
ARG BASE=python:3.12-slim

FROM ${BASE} AS requirements
WORKDIR /build
COPY pyproject.toml deploy/requirements /build/
RUN python3 requirements server >requirements.txt

# What changes rarely: the libraries, at the versions of constraints.txt.
FROM ${BASE} AS libraries
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY --from=requirements /build/requirements.txt /build/
# The second name is a pattern that may match nothing.
COPY constraints.txt deploy/wheel[s] /wheels/
RUN index=; if ls /wheels/*.whl >/dev/null 2>&1; then index=--no-index; fi; \
    pip install $index --find-links /wheels -c /wheels/constraints.txt -r requirements.txt setuptools

# The source tree as it will lie there, with its metadata (version, entry points), bytecode and
# collected static files.
FROM libraries AS source
WORKDIR /app
COPY . /app/
# `collectstatic` needs some key; this one is of this line alone.
RUN rm -rf deploy/wheels && python -c 'import setuptools; setuptools.setup()' --quiet egg_info \
    && SECRET_KEY=only-while-the-image-is-built LOADMASTER_HOME=/tmp/build STATIC_ROOT=/app/staticfiles \
       python manage.py collectstatic --noinput --verbosity 0 \
    && python -m compileall -q /app && rm -rf /tmp/build

FROM ${BASE}
RUN groupadd --gid 10001 loadmaster \
    && useradd --uid 10001 --gid loadmaster --home-dir /var/lib/loadmaster --create-home --shell /usr/sbin/nologin loadmaster \
    && chmod -R go= /var/lib/loadmaster
COPY --from=libraries /opt/venv /opt/venv
COPY --from=source /app /app
WORKDIR /app
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    LOADMASTER_HOME=/var/lib/loadmaster LOADMASTER_BIND=0.0.0.0 STATIC_ROOT=/app/staticfiles \
    NUMBA_CACHE_DIR=/tmp/loadmaster-kernels LOADMASTER_METRICS_DIR=/tmp/loadmaster-metrics \
    LOADMASTER_SIMULATIONS_DIR=/tmp/loadmaster-simulations
USER loadmaster
EXPOSE 8000
ENTRYPOINT ["/app/deploy/entrypoint"]
CMD ["web"]
# Web's; docker-compose.yml names those of worker and beat.
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s CMD ["/app/deploy/entrypoint", "healthy", "web"]
