#!/usr/bin/env bash
# Copies the checkout to every host, installs it there, and mounts the bucket at ~/bucket.
#   setup.sh --bucket B [--name N] [--zone Z] [--project P] [--dry-run]

# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
options "$@"
[ -n "$BUCKET" ] || fail "--bucket: missing; all hosts need one place for checkpoints"
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
  python3 -m uv pip install --quiet --python venv/bin/python "./headjax[tpu,data]"'
on_all_hosts "command -v gcsfuse > /dev/null || {
  echo \"deb https://packages.cloud.google.com/apt gcsfuse-\$(lsb_release -cs) main\" |
    sudo tee /etc/apt/sources.list.d/gcsfuse.list > /dev/null &&
  curl -fsS https://packages.cloud.google.com/apt/doc/apt-key.gpg | sudo tee /etc/apt/trusted.gpg.d/google.asc > /dev/null &&
  sudo apt-get -qq update && sudo apt-get -qq install --yes gcsfuse; }
  mkdir -p bucket && { mountpoint -q bucket || gcsfuse --implicit-dirs --rename-dir-limit=100000 $(printf '%q' "$BUCKET") bucket; }"
