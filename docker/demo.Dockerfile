# What the demo's jobs run in: Python with the training library and the demo's programs. `make demo RUNTIME=docker` builds it; the
# build needs no network, for the packages in site/ were fetched for this base image before (controlplane/operations/demo/image.py).
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG SITE=/usr/local/lib/python3.12/site-packages
COPY site/ ${SITE}/
# The programs are imported once, so that no launch has to compile them again.
RUN { command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python; } \
    && python -c "import loadmaster.demo.convnet, loadmaster.demo.dense, loadmaster.demo.recurrent"
ENV OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
CMD ["python", "-m", "loadmaster.demo.convnet", "--help"]
