#!/usr/bin/env bash
# The state of the slice, whether every host trains or with which exit code it ended, and the last lines of the first host's log.
#   watch.sh [--name N] [--zone Z] [--project P] [--dry-run]

# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
options "$@"
tpus queued-resources describe "$NAME" --format='value(state.state)'
on_all_hosts "if $TRAINS; then echo training; else echo \"not training, exit code \$(cat headjax.exit 2> /dev/null)\"; fi"
tpus tpu-vm ssh "$NAME" --worker=0 --command='tail -n 20 headjax.log'
