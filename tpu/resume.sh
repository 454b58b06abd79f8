#!/usr/bin/env bash
# After a preemption: asks for the slice again, waits for it, sets it up and continues training. Run it from cron, or in
# a loop; while the slice is active it only makes sure that every host trains, unless its run finished, failed or diverged.
#   resume.sh [options of create.sh] -- [arguments of headjax train]

# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
options "$@"
here=$(dirname "$0")
export NAME ZONE PROJECT TYPE SPOT DRY_RUN

state() { gcloud compute tpus queued-resources describe "$NAME" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"} \
  --format='value(state.state)' 2> /dev/null || echo NONE; }

now=${DRY_RUN:+SUSPENDED}
now=${now:-$(state)}
case $now in
  ACTIVE) ;;
  SUSPENDED | FAILED | NONE)
    [ "$now" = NONE ] || "$here/delete.sh"
    "$here/create.sh"
    ;;
esac
if [ "$now" != ACTIVE ]; then
  until [ -n "$DRY_RUN" ] || [ "$(state)" = ACTIVE ]; do sleep 60; done
  "$here/setup.sh"
fi
UNFINISHED=1 "$here/launch.sh" -- "${REST[@]}"
