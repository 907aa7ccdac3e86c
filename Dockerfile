# The server: web, worker, beat and migrations are commands of this one image (deploy/entrypoint).
#
#   docker build -t loadmaster .
#
# BASE is any image with Python 3.11 to 3.14 and venv. Where no package index can be reached, put the wheels into deploy/wheels
# first: pip download -d deploy/wheels -c constraints.txt '.[server]' 'setuptools>=77'
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /app
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# Dependencies first: they change more rarely than the source. (The second name is a pattern that may match nothing.)
COPY pyproject.toml constraints.txt README.md /app/
COPY pyproject.toml deploy/wheel[s] /wheels/
RUN index=; if ls /wheels/*.whl >/dev/null 2>&1; then index=--no-index; fi; \
    pip install $index --find-links /wheels -c constraints.txt '.[server]' && pip uninstall --yes loadmaster
COPY . /app/
# Editable: templates and static files are found beside the packages, and the version and entry points are there all the same.
# The key is this line's alone; `collectstatic` needs some key, and the image keeps none.
RUN index=; if ls /wheels/*.whl >/dev/null 2>&1; then index=--no-index; fi; \
    pip install $index --find-links /wheels --no-deps --editable . \
    && SECRET_KEY=only-while-the-image-is-built LOADMASTER_HOME=/tmp/build STATIC_ROOT=/app/staticfiles \
       python manage.py collectstatic --noinput --verbosity 0 \
    && python -m compileall -q /app && rm -rf /tmp/build /app/build /app/deploy/wheels

FROM ${BASE}
RUN groupadd --gid 10001 loadmaster \
    && useradd --uid 10001 --gid loadmaster --home-dir /var/lib/loadmaster --create-home --shell /usr/sbin/nologin loadmaster
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
WORKDIR /app
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    LOADMASTER_HOME=/var/lib/loadmaster LOADMASTER_BIND=0.0.0.0 STATIC_ROOT=/app/staticfiles NUMBA_CACHE_DIR=/tmp/loadmaster-kernels \
    LOADMASTER_METRICS_DIR=/tmp/loadmaster-metrics
USER loadmaster
EXPOSE 8000
ENTRYPOINT ["/app/deploy/entrypoint"]
CMD ["web"]
# Web's; docker-compose.yml names those of worker and beat.
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s CMD ["/app/deploy/entrypoint", "healthy", "web"]
