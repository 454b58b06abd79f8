# shellcheck shell=bash
# What all scripts here share; they source it. Options may also come from the environment in capitals (NAME, ZONE, ...).

set -euo pipefail

NAME=${NAME:-headjax}
ZONE=${ZONE:-us-east5-b}
PROJECT=${PROJECT:-}
TYPE=${TYPE:-v6e-8}
SPOT=${SPOT:-}
DRY_RUN=${DRY_RUN:-}
REST=()

# On a host: whether it trains. A search for the process by its command line would find the search itself.
# shellcheck disable=SC2016,SC2034
TRAINS='kill -0 "$(cat headjax.pid 2> /dev/null)" 2> /dev/null'

# On a host: whether its last run needs no other: it finished (0), or would fail (2) or diverge (3) again. Any other code
# is one of an interrupted (130) or killed run.
# shellcheck disable=SC2016,SC2034
ENDED='case "$(cat headjax.exit 2> /dev/null)" in 0 | 2 | 3) ;; *) false ;; esac'

# Reads the options; what follows -- is left in REST. --dry-run counts wherever it stands, also after --: whoever writes
# it last must not find that the commands were run.
options() {
  local word kept=()
  for word in "$@"; do
    if [ "$word" = --dry-run ]; then DRY_RUN=1; else kept+=("$word"); fi
  done
  set -- "${kept[@]}"
  while [ $# -gt 0 ]; do
    case $1 in
      --name | --zone | --project | --type)
        [ $# -ge 2 ] || fail "$1: expected a value"
        case $1 in
          --name) NAME=$2 ;;
          --zone) ZONE=$2 ;;
          --project) PROJECT=$2 ;;
          --type) TYPE=$2 ;;
        esac
        shift 2
        ;;
      --spot) SPOT=1 && shift ;;
      --help | -h) usage && exit 0 ;;
      --) shift && REST+=("$@") && return ;;
      -*) fail "unknown option $1" ;;
      *) fail "unexpected $1; arguments of headjax train go after --" ;;
    esac
  done
}

# The comment at the head of the script.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

fail() {
  echo "$(basename "$0"): $1" >&2
  exit 2
}

# Runs a command, or prints it, quoted so that it can be pasted.
run() {
  if [ -n "$DRY_RUN" ]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# gcloud compute tpus ... with project and zone; the command's words, then its options.
tpus() { run gcloud compute tpus "$@" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"}; }

# A command on every host of the slice.
on_all_hosts() { tpus tpu-vm ssh "$NAME" --worker=all --command="$1"; }

# Cloud's accelerator type: it calls v5e v5litepod.
accelerator() { echo "${TYPE/#v5e-/v5litepod-}"; }

# The image that goes with the generation.
image() {
  case $TYPE in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5e-* | v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    *) fail "--type: expected v2-N, v3-N, v4-N, v5e-N, v5p-N or v6e-N, got $TYPE" ;;
  esac
}
