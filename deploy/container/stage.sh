#!/usr/bin/env bash
# Copies the content of the image into DIR: rootfs/ and state/. usage: deploy/container/stage.sh DIR
set -euo pipefail
cd "$(dirname "$0")/../.."

die() { echo "stage.sh: $*" >&2; exit 1; }

(($# == 1)) || die "name the folder to stage into"
readonly rootfs=$1/rootfs state=$1/state
readonly authorities=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}

[[ -s $authorities ]] || die "$authorities is missing: install ca-certificates, or name another file with SSL_CERT_FILE"
# /var/lib belongs to root, so it is created before the part of it that does not.
mkdir -p "$rootfs"/{bin,etc/ssl/certs,etc/postern,var/lib} "$state/postern"
cp "$authorities" "$rootfs/etc/ssl/certs/ca-certificates.crt"
echo "postern:x:65532:65532:Postern:/var/lib/postern:/nonexistent" >"$rootfs/etc/passwd"
echo "postern:x:65532:" >"$rootfs/etc/group"

# git may refuse another user's checkout, or there is no git: then the programs report no version.
stamp=false
if git rev-parse --verify --quiet HEAD >/dev/null 2>&1; then stamp=true; fi
CGO_ENABLED=0 GOOS=linux go build -trimpath -buildvcs="$stamp" -ldflags="-s -w" -o "$rootfs/bin/" ./cmd/...

chmod -R u=rwX,go=rX "$rootfs"
chmod 0700 "$state/postern"
