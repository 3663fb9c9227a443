# docker build -t cleanerd .      (podman and buildah: --format docker, or the HEALTHCHECK is lost)
#
# All that changes at run time lies below /run/cleanerd, /var/lib/cleanerd, /var/cache/cleanerd and /tmp, so the root may be
# read-only. The user must be the owner of the broker's files: docker run --user UID:GID. Any number will do.

# hadolint global ignore=DL3008,DL3042
# (Debian keeps only the newest version of a package; what pip caches stays outside of the image)

# Debian 12: Python 3.11. Pin it by digest where builds have to be repeatable.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates openjdk-17-jdk-headless python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
# What Spark needs of a JDK: a fourth of a whole runtime; and the archives of its classes, which jlink leaves out.
RUN jlink --output /opt/java --compress=2 --strip-java-debug-attributes --no-header-files --no-man-pages --add-modules \
java.base,java.desktop,java.logging,java.management,java.naming,java.net.http,java.scripting,java.security.jgss,\
java.security.sasl,java.sql,java.xml,jdk.incubator.vector,jdk.management,jdk.security.auth,jdk.unsupported \
 && /opt/java/bin/java -Xshare:dump && /opt/java/bin/java -XX:-UseCompressedOops -Xshare:dump
WORKDIR /src
COPY LICENSE README.md constraints.txt hatch_build.py pyproject.toml ./
COPY systemd systemd
COPY etc etc
COPY cleanerd cleanerd
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /build /opt/cleanerd \
 && /build/bin/pip wheel --no-deps --wheel-dir /wheels . \
 && /opt/cleanerd/bin/pip install --use-pep517 --constraint constraints.txt /wheels/*.whl \
 && /opt/cleanerd/bin/pip uninstall --yes pip setuptools \
 && find /opt/cleanerd -type d -name tests -prune -exec rm -rf {} +

FROM ${BASE}
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 tini \
 && rm -rf /var/lib/apt/lists/* \
 && for directory in /run/cleanerd /var/lib/cleanerd /var/cache/cleanerd; do install -d -m 1777 "$directory"; done \
 && install -d -o 1000 -g 1000 /var/lib/kafka/data
COPY --from=build /opt/java /opt/java
COPY --from=build /opt/cleanerd /opt/cleanerd

ENV PATH=/opt/cleanerd/bin:/usr/local/bin:/usr/bin:/bin \
    JAVA_HOME=/opt/java \
    HOME=/tmp \
    CACHE_DIRECTORY=/var/cache/cleanerd \
    CLEANERD_METRICS_LISTEN=0.0.0.0:11308

# Facts about the source: --build-arg VERSION="$(cleanerd --version | cut -d" " -f2)"
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="cleanerd" \
      org.opencontainers.image.description="Log cleaner for Kafka log directories: compaction and retention beside the broker" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# The user of Kafka's own image.
USER 1000:1000
EXPOSE 11308
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=5m CMD ["cleanerctl", "status", "--timeout", "5s"]
ENTRYPOINT ["tini", "--", "cleanerd"]
CMD ["run", "--config", "/etc/kafka/server.properties"]
