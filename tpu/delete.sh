#!/usr/bin/env bash
# Deletes the slice and its place in the queue, which ends what it costs. The bucket stays.
#   delete.sh [--name N] [--zone Z] [--project P] [--dry-run]

# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
options "$@"
tpus queued-resources delete "$NAME" --force --quiet
