#!/usr/bin/env bash
# Builds the image from this checkout with the local Go; nothing is fetched from a registry.
# usage: deploy/container/build.sh [IMAGE]
#   IMAGE    the argument, else the variable IMAGE, else localhost/postern:latest; with buildah or podman also oci-archive:FILE:NAME
#   ENGINE   the command to build with; default the first that is installed of buildah, podman and docker
#   GOARCH   another architecture than this machine's, e.g. arm64
set -euo pipefail
cd "$(dirname "$0")/../.."

die() { echo "build.sh: $*" >&2; exit 1; }

engine=${ENGINE:-}
for known in buildah podman docker; do
  if [[ -z $engine ]] && command -v "$known" >/dev/null; then engine=$known; fi
done
[[ -n $engine ]] || die "no buildah, podman or docker is installed; on Debian: apt-get install buildah"
command -v "${engine%% *}" >/dev/null || die "${engine%% *} is not installed; on Debian: apt-get install buildah"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
deploy/container/stage.sh "$stage"

revision=unknown version=unknown
if git rev-parse --verify --quiet HEAD >/dev/null 2>&1; then
  revision=$(git rev-parse HEAD)
  version=$(git describe --tags --always --dirty)
fi
options=(--file deploy/container/Containerfile --tag "${1:-${IMAGE:-localhost/postern:latest}}" --platform "linux/${GOARCH:-$(go env GOARCH)}"
  --build-arg "VERSION=$version" --build-arg "REVISION=$revision")
if [[ $engine != docker* ]]; then
  # The same checkout makes the same image, whenever it is built.
  options+=(--timestamp "$(git log -1 --format=%ct 2>/dev/null || date +%s)")
fi
$engine build "${options[@]}" "$stage"
