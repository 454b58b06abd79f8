#!/usr/bin/env bash
# Writes a task as tokenised shards, once, on the first host; in a bucket all hosts see them.
#   prepare.sh [--name N] [--zone Z] [--project P] [--dry-run] -- TASK --out gs://BUCKET/data/TASK [...]

# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
options "$@"
[ "${#REST[@]}" -gt 0 ] || fail "nothing to prepare; give the arguments of headjax prepare after --"
prepare=$(printf '%q ' venv/bin/headjax prepare "${REST[@]}")
tpus tpu-vm ssh "$NAME" --worker=0 --command="$prepare"
