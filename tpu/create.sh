#!/usr/bin/env bash
# Asks for a TPU slice in the queue; it is there once `watch.sh` says ACTIVE.
#   create.sh [--name N] [--type v6e-8] [--zone Z] [--project P] [--spot] [--dry-run]

# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
options "$@"
version=$(image)
tpus queued-resources create "$NAME" --node-id="$NAME" --accelerator-type="$(accelerator)" \
  --runtime-version="$version" ${SPOT:+--spot}
