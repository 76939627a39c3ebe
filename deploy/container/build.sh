#!/usr/bin/env bash
# Builds the image from this checkout with the local Go; nothing is fetched from a registry.
# usage: deploy/container/build.sh [IMAGE]
#   IMAGE    default: the variable IMAGE, then localhost/postern:latest; with buildah or podman also
#            oci-archive:FILE:NAME
#   ENGINE   command to build with; default: the first installed one of buildah, podman and docker
#   GOARCH   architecture of the image, e.g. arm64; default: this machine's
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
options=(--file deploy/container/Containerfile --tag "${1:-${IMAGE:-localhost/postern:latest}}"
  --platform "linux/${GOARCH:-$(go env GOARCH)}"
  --build-arg "VERSION=$version" --build-arg "REVISION=$revision")
if [[ $engine != docker* ]]; then
  # The same checkout gives the same image at any time.
  options+=(--timestamp "$(git log -1 --format=%ct 2>/dev/null || date +%s)")
fi
$engine build "${options[@]}" "$stage"
