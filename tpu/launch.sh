#!/usr/bin/env bash
# Starts `headjax train` on every host, in the background; it resumes by itself from the workdir's last checkpoint. Its
# exit code goes to headjax.exit. With UNFINISHED=1 a host whose run finished, failed or diverged starts no other.
#   launch.sh [--name N] [--zone Z] [--project P] [--dry-run] -- --config FILE[:ARGS] --workdir gs://BUCKET/RUN [...]

# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
options "$@"
[ "${#REST[@]}" -gt 0 ] || fail "nothing to train; give the arguments of headjax train after --"
train=$(printf '%q ' venv/bin/headjax train --distributed auto "${REST[@]}")
skip=$TRAINS
if [ -n "${UNFINISHED:-}" ]; then
  skip="$TRAINS || { $ENDED && echo \"ended with exit code \$(cat headjax.exit); launch.sh starts it again\"; }"
fi
# The process itself is in headjax.pid, so that a signal reaches it; a shell beside it waits for its exit code.
start="nohup $train >> headjax.log 2>&1 < /dev/null & echo \$! > headjax.pid; wait \$!; echo \$? > headjax.exit"
detached="(trap '' HUP; $start) > /dev/null 2>&1 < /dev/null &"
on_all_hosts "$skip || { rm -f headjax.pid headjax.exit; $detached until [ -s headjax.pid ]; do sleep 0.1; done; }"
