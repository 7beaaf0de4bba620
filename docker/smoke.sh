#!/usr/bin/env bash
# Build, start, publish through one edge and receive through the other, stop. Exit code 0 only if everything arrived.
#
#   docker/smoke.sh            # with docker compose, else podman-compose
#   COMPOSE=podman-compose docker/smoke.sh
#   KEEP=1 NO_BUILD=1 docker/smoke.sh      # leave it running; build nothing
set -euo pipefail
cd "$(dirname "$0")"
if [ -z "${COMPOSE:-}" ]; then
  if docker compose version > /dev/null 2>&1 && docker info > /dev/null 2>&1; then
    COMPOSE="docker compose"
  elif command -v podman-compose > /dev/null; then
    COMPOSE="podman-compose"
  else
    echo "docker/smoke.sh: needs docker compose with a running engine, or podman-compose" >&2
    exit 1
  fi
fi
export BUILDAH_FORMAT=docker # podman keeps HEALTHCHECK only in this format
export MQTT_PORT=${MQTT_PORT:-1883} HTTP_PORT=${HTTP_PORT:-8080}
compose() { $COMPOSE -f compose.yaml -p "${PROJECT:-headwater-smoke}" "$@"; }
has_passed=0
finish() {
  if [ "$has_passed" = 0 ]; then
    for service in topics edge-0 edge-1 haproxy spark; do
      echo "--- $service" >&2
      compose logs --tail 15 "$service" >&2 || true
    done
  fi
  [ -n "${KEEP:-}" ] || compose down --volumes > /dev/null 2>&1 || true
}
trap finish EXIT

[ -n "${NO_BUILD:-}" ] || compose build
compose up --detach

# through HAProxy: an edge is only asked when it is ready itself
deadline=$((SECONDS + 180))
until curl -fsS -m 3 "http://127.0.0.1:$HTTP_PORT/readyz" 2> /dev/null; do
  ((SECONDS < deadline)) || { echo "docker/smoke.sh: no edge was ready behind HAProxy in 180 s" >&2; exit 1; }
  sleep 1
done
echo "  after ${SECONDS} s"
for edge in edge-0 edge-1; do
  until compose exec -T "$edge" python -c \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=3)" 2> /dev/null; do
    ((SECONDS < deadline)) || { echo "docker/smoke.sh: $edge was not ready in 180 s" >&2; exit 1; }
    sleep 1
  done
  [ "$(compose exec -T "$edge" id -u)" = 10001 ] || { echo "docker/smoke.sh: $edge does not run as headwater" >&2; exit 1; }
  if compose exec -T "$edge" touch /probe 2> /dev/null; then
    echo "docker/smoke.sh: the root of $edge is writable" >&2
    exit 1
  fi
done

compose --profile smoke run --rm -T smoke
compose exec -T edge-1 python - < smoke_websocket.py
compose exec -T edge-0 headwater nodes --kafka kafka:9092
has_passed=1
echo "docker/smoke.sh: passed in ${SECONDS} s"
