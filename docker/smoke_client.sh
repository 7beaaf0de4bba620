#!/bin/sh
# In a container beside the edges, with mosquitto's clients: what is published on one edge arrives on the other, in both
# versions of MQTT and both qualities of service, through HAProxy too, and from Spark. Exit code 1 at the first miss.
set -u
export XDG_CONFIG_HOME=/tmp
for user in device viewer; do
  [ -s "/run/headwater/$user.password" ] || { echo "smoke: no password of $user: has 'credentials' run?" >&2; exit 1; }
done
umask 077
# options in files: a password on a command line is everybody's
printf -- '-u device\n-P %s\n' "$(cat /run/headwater/device.password)" > /tmp/mosquitto_pub
printf -- '-u viewer\n-P %s\n' "$(cat /run/headwater/viewer.password)" > /tmp/mosquitto_sub

fail() { echo "smoke: $*" >&2; exit 1; }

# Publish until the subscriber has its message: nobody says here when SUBACK has come. Each client has an id of its own:
# one that connects 15 times a minute is banned.
run=0
# arrives NAME FROM TO FILTER TOPIC_NAME MESSAGE SECONDS OPTIONS...
arrives() {
  name=$1 from=$2 to=$3 filter=$4 topic_name=$5 message=$6 seconds=$7
  shift 7
  run=$((run + 1))
  mosquitto_sub -h "$to" -i "smoke-subscriber-$run" "$@" -t "$filter" -C 1 -W "$seconds" -F '%t %p' > /tmp/received &
  subscriber=$!
  tries=0
  while kill -0 "$subscriber" 2> /dev/null && [ "$tries" -lt "$seconds" ]; do
    mosquitto_pub -h "$from" -i "smoke-publisher-$run-$tries" "$@" -t "$topic_name" -m "$message" || fail "$name: publishing failed"
    tries=$((tries + 1))
    sleep 1
  done
  wait "$subscriber" || fail "$name: nothing arrived within $seconds s"
  echo "ok  $name: $(cut -c 1-140 /tmp/received)"
}

n=0
for version in 311 5; do
  for qos in 0 1; do
    for way in 'edge-0 edge-1' 'edge-1 edge-0' 'haproxy edge-0' 'edge-1 haproxy'; do
      n=$((n + 1))
      from=${way% *} to=${way#* }
      arrives "MQTT $version QoS $qos $from -> $to" "$from" "$to" 'sensors/smoke/+/temp' "sensors/smoke/d$n/temp" \
        "$n" 30 -V "mqttv$version" -q "$qos"
      [ "$(cat /tmp/received)" = "sensors/smoke/d$n/temp $n" ] || fail "another message arrived"
    done
  done
done

mkdir -p /tmp/wrong
printf -- '-u viewer\n-P wrong\n' > /tmp/wrong/mosquitto_sub
XDG_CONFIG_HOME=/tmp/wrong mosquitto_sub -h edge-0 -t 'sensors/#' -C 1 -W 5 2> /tmp/refused && fail "a wrong password got in"
grep -qi 'not authori[sz]ed\|refused' /tmp/refused || fail "a wrong password was not refused: $(cat /tmp/refused)"
echo "ok  a wrong password is refused: $(cat /tmp/refused)"

arrives "Spark's results as MQTT topics" edge-0 edge-1 'analytics/stats/#' sensors/smoke/spark/reading \
  '{"temp": 21.5}' "${SMOKE_SPARK_S:-180}" -V mqttv5 -q 1
