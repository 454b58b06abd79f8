#!/usr/bin/env bash
# Copies the checkout to every host and installs it there.
#   setup.sh [--name N] [--zone Z] [--project P] [--dry-run]

# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
options "$@"
archive=headjax.tar.gz
if [ -z "$DRY_RUN" ]; then
  folder=$(mktemp -d)
  trap 'rm -r "$folder"' EXIT
  archive=$folder/headjax.tar.gz
fi
run git -C "$(dirname "$0")/.." archive --format=tar.gz --output="$archive" HEAD
tpus tpu-vm scp "$archive" "$NAME:headjax.tar.gz" --worker=all
# The images come with an older Python; uv brings one.
on_all_hosts 'mkdir -p headjax && tar xzf headjax.tar.gz -C headjax && python3 -m pip install --quiet --user uv &&
  python3 -m uv venv --quiet --allow-existing --python 3.12 venv &&
  python3 -m uv pip install --quiet --python venv/bin/python "./headjax[tpu,data,gcs]"'
