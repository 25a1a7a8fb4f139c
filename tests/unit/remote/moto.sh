#!/usr/bin/env bash
# Runs the S3 tier's tests with a real server: moto's, of PyPI, in a Python environment of its own that is kept in ~/.cache/kvist.
#
# usage: tests/unit/remote/moto.sh TEST...
# Exit status: 0 when all pass, 1 when one doesn't; 77 and a line that says SKIPPED where the server can't be installed.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: moto.sh TEST..." >&2; exit 2; }
wanted='moto[server]==5.2.5'
venv=${XDG_CACHE_HOME:-$HOME/.cache}/kvist/moto-$(printf '%s %s' "$wanted" "$(python3 --version)" | sha256sum | cut -c1-16)

if [ ! -x "$venv/bin/moto_server" ]; then
  mkdir -p "$(dirname "$venv")"
  rm -rf "$venv"
  if ! { python3 -m venv "$venv" && timeout 300 "$venv/bin/pip" install -q "$wanted"; } >"$venv.log" 2>&1; then
    tail -n 3 "$venv.log" >&2
    rm -rf "$venv"
    echo "SKIPPED: the S3 tier wasn't tried on a real server: $wanted can't be installed ($venv.log)" >&2
    exit 77
  fi
fi

folder=$(mktemp -d)
server=''
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$folder"' EXIT
"$venv/bin/python" - >"$folder/log" 2>&1 <<'P' &
import socket, sys
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print("port", server.server_port, flush=True)
server.serve_forever()
P
server=$!
port=''
for _ in $(seq 300); do
  port=$(sed -n 's/^port //p' "$folder/log")
  [ -z "$port" ] || break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
[ -n "$port" ] || { cat "$folder/log" >&2; echo "moto's server doesn't start" >&2; exit 1; }
"$venv/bin/python" - "$port" <<'P'
import boto3, sys
boto3.client("s3", endpoint_url=f"http://127.0.0.1:{sys.argv[1]}", region_name="us-east-1", aws_access_key_id="access",
             aws_secret_access_key="secret").create_bucket(Bucket="kvist-test")
P
for test in "$@"; do
  KVIST_S3_ENDPOINT=http://127.0.0.1:$port "$test" '[.moto]' || { tail -n 40 "$folder/log" >&2; exit 1; }
done
