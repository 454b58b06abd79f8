#!/usr/bin/env bash
# Starts `headjax train` on every host, in the background; it resumes by itself from the workdir's last checkpoint.
#   launch.sh [--name N] [--zone Z] [--project P] [--dry-run] -- --config FILE[:ARGS] --workdir bucket/RUN [...]

# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
options "$@"
[ "${#REST[@]}" -gt 0 ] || fail "nothing to train; give the arguments of headjax train after --"
train=$(printf '%q ' venv/bin/headjax train --distributed auto "${REST[@]}")
on_all_hosts "$TRAINS || { nohup $train >> headjax.log 2>&1 < /dev/null & echo \$! > headjax.pid; }"
