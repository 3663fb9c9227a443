#!/bin/sh
# Entry point of the image. Spark does not start as a user without a name (Hadoop's login module insists on one), and the
# image may be run with any number: OpenShift does. The root may be read-only, so /etc/passwd cannot be added to.
set -eu
if ! getent passwd "$(id -u)" > /dev/null; then
    echo "cleanerd:x:$(id -u):$(id -g)::/tmp:/bin/false" > /tmp/passwd
    export LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_PASSWD=/tmp/passwd NSS_WRAPPER_GROUP=/etc/group
fi
exec cleanerd "$@"
