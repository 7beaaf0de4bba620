#!/usr/bin/env bash
# Stand-ins for the base images, where no image registry can be reached: Debian by debootstrap, tagged with the names
# that compose.yaml and the Dockerfiles ask for. For trying docker/ out with podman, never for use. Needs root, podman,
# debootstrap, and Kafka's jars in a folder:
#
#   docker/standin/build.sh ~/.cache/headwater/kafka-4.3.1
set -euo pipefail
jars=${1:?usage: docker/standin/build.sh FOLDER_WITH_KAFKA_JARS}
here=$(cd "$(dirname "$0")" && pwd)
base=localhost/headwater-standin/debian:bookworm
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

if ! podman image exists "$base"; then
  debootstrap --variant=minbase --include=ca-certificates bookworm "$root/base" > /dev/null
  # this host's certificates: where it trusts one of its own, so must the builds
  cp /etc/ssl/certs/ca-certificates.crt "$root/base/etc/ssl/certs/ca-certificates.crt"
  tar -C "$root/base" -c . | podman import --quiet --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' - "$base"
fi
build() { podman build --quiet --build-arg "BASE=$base" --file "$here/Dockerfile.$1" --tag "$2" "${3:-$here}"; }
build python docker.io/library/python:3.11-slim-bookworm
build haproxy docker.io/library/haproxy:3.2
build mosquitto docker.io/library/eclipse-mosquitto:2.0
mkdir "$root/kafka"
cp "$jars"/*.jar "$here"/kafka/* "$root/kafka/"
build kafka docker.io/apache/kafka:4.3.1 "$root/kafka"
