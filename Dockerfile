# whichrank's program. Two stages: the compiler and pip stay in the first.
#
#   docker build -t whichrank:0.1.0 --target whichrank .
#   docker build -t whichrank-demo:0.1.0 --target demo .       with torch, for the profile "demo": some GB

ARG PYTHON_TAG=3.12-slim-bookworm

FROM python:${PYTHON_TAG} AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/whichrank
WORKDIR /source
COPY requirements/image.txt requirements/image.txt
RUN /opt/whichrank/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/image.txt
COPY . .
RUN /opt/whichrank/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:${PYTHON_TAG} AS whichrank
RUN groupadd --gid 10001 whichrank \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/whichrank --create-home --shell /usr/sbin/nologin whichrank
COPY --from=build /opt/whichrank /opt/whichrank
# An empty volume takes over owner and mode of what it covers.
RUN install --directory --owner=10001 --group=10001 --mode=700 /var/lib/whichrank/state /var/lib/whichrank/respond \
      /var/lib/whichrank/notify /var/lib/whichrank/annotate /var/lib/whichrank/victorialogs /var/lib/whichrank/jaeger
ENV PATH=/opt/whichrank/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/whichrank
ENTRYPOINT ["whichrank"]
CMD ["--help"]

# The demo job trains for real. Its packages are those of the tests, torch among them.
FROM build AS demo-build
COPY requirements/newest.txt requirements/newest.txt
RUN /opt/whichrank/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/newest.txt

FROM whichrank AS demo
COPY --from=demo-build /opt/whichrank /opt/whichrank

# The processors on Flink: one image for JobManager, TaskManagers and the command that submits (compose.flink.yaml).
#
#   docker build -t whichrank-flink:0.1.0 --target flink .
FROM python:${PYTHON_TAG} AS flink-build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev maven openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/whichrank
WORKDIR /source
COPY requirements/flink.txt requirements/flink.txt
RUN /opt/whichrank/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/flink.txt
COPY deploy/flink deploy/flink
RUN deploy/flink/fetch.sh /opt/flink-jars \
 && deploy/flink/home.sh /opt/whichrank/bin/python /opt/flink /opt/flink-jars \
 && cp deploy/flink/start.sh /opt/flink/start.sh
COPY . .
RUN /opt/whichrank/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:${PYTHON_TAG} AS flink
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 whichrank \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/whichrank --create-home --shell /usr/sbin/nologin whichrank \
 && install --directory --owner=10001 --group=10001 --mode=700 /var/lib/whichrank/flink
COPY --from=flink-build /opt/whichrank /opt/whichrank
COPY --from=flink-build /opt/flink-jars /opt/flink-jars
COPY --from=flink-build --chown=10001:10001 /opt/flink /opt/flink
ENV PATH=/opt/whichrank/bin:/opt/flink/bin:$PATH FLINK_HOME=/opt/flink FLINK_LIB_DIR=/opt/flink/lib \
    FLINK_OPT_DIR=/opt/flink/opt FLINK_PLUGINS_DIR=/opt/flink/plugins PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/whichrank
ENTRYPOINT ["sh", "/opt/flink/start.sh"]
CMD ["whichrank", "--help"]

# What "docker build" makes unasked.
FROM whichrank
