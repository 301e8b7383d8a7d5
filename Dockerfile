# One image for every role; docker-compose.yaml says which command each one runs.
# A base image of your own (--build-arg BASE=…) is also the place for mirrors and certificates.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    WEIR_JARS=/opt/jars

FROM base AS packages
COPY requirements.lock docker/image.lock pyproject.toml /tmp/
# The lock has the developers' tools in it, too: a tenth of the image, and nothing here needs them.
RUN python -m venv /opt/venv \
    && pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes -r /tmp/image.lock \
    && uv pip install --no-cache --compile-bytecode --python /opt/venv/bin/python --require-hashes -r /tmp/requirements.lock \
    && uv pip uninstall --python /opt/venv/bin/python \
       $(python -c "import tomllib; print(*tomllib.load(open('/tmp/pyproject.toml', 'rb'))['project']['optional-dependencies']['dev'])")

# A stage of its own: a change of dags, plugins, jobs or declarations does not fetch the jars again.
FROM packages AS jars
WORKDIR /opt/weir
COPY ivy.xml ./
COPY weir weir
RUN python -m weir.cli jars --store

FROM base
COPY --from=packages /opt/venv /opt/venv
COPY --from=jars /opt/jars /opt/jars
COPY --from=jars /opt/jars-store /opt/jars-store
WORKDIR /opt/weir
COPY pyproject.toml README.md LICENSE ivy.xml ./
COPY weir weir
COPY spark_jobs spark_jobs
COPY quality quality
COPY plugins plugins
COPY dags dags
COPY pipelines pipelines
COPY docker docker
# The folders of the volumes: a new volume takes its owner from the folder that it covers.
RUN uv pip install --no-cache --python /opt/venv/bin/python --no-deps --no-build-isolation -e . \
    && python -m compileall -q weir spark_jobs quality plugins dags docker \
    && useradd --uid 10001 --no-create-home --home-dir /var/lib/weir/home weir \
    && mkdir -p /var/lib/weir/airflow /var/lib/weir/home /var/lib/weir/kafka /var/lib/weir/lake /var/lib/weir/store /var/lib/weir/work \
    && chown -R weir:weir /var/lib/weir
ENV AIRFLOW_HOME=/var/lib/weir/airflow \
    SPARK_CONF_DIR=/opt/weir/docker/spark \
    WEIR_HOME=/var/lib/weir/home \
    WEIR_LAKE=/var/lib/weir/lake \
    WEIR_PIPELINES=/opt/weir/pipelines
USER weir
CMD ["weir", "--help"]
