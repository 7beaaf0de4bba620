#!/bin/sh
# Users with random passwords, once, in the volume that the edges read: /run/headwater/users (hashed) and the passwords
# beside it, for their owner only. `docker compose run --rm credentials viewer` prints a user's.
set -eu
umask 077
folder=/run/headwater
case "${1:-make}" in
make)
  for user in device viewer; do
    [ -s "$folder/$user.password" ] && continue
    python -c 'import secrets; print(secrets.token_urlsafe(24))' > "$folder/$user.password.new"
    headwater passwd "$folder/users" "$user" < "$folder/$user.password.new"
    mv "$folder/$user.password.new" "$folder/$user.password"
  done
  ;;
device | viewer) cat "$folder/$1.password" ;;
*)
  echo "usage: credentials [device|viewer]" >&2
  exit 2
  ;;
esac
