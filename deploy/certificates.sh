#!/usr/bin/env bash
# Creates a certificate authority, and certificates for the clients and servers of NATS, valid for
# 825 days. NATS identifies its users by them. Existing files stay unchanged. To renew a certificate
# or to add a HOST, remove NAME.crt and NAME.key first.
# usage: deploy/certificates.sh DIR [HOST...]
#   HOST    names and addresses of the NATS servers, in addition to localhost
set -euo pipefail

die() { echo "certificates.sh: $*" >&2; exit 1; }

(($# >= 1)) || die "name the folder to write to"
command -v openssl >/dev/null || die "openssl is missing; on Debian: apt-get install openssl"
readonly dir=$1 days=825
shift
umask 077
mkdir -p "$dir"
cd "$dir"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

# ca.key may be stored elsewhere, so ca.crt without it is no reason for another authority.
if [[ ! -e ca.key && ! -e ca.crt ]]; then
  key ca
  openssl req -x509 -new -key ca.key -sha256 -days 3650 -subj "/CN=Postern's own authority" -out ca.crt
fi

# certificate NAME USAGE [SAN] creates a certificate that the authority signs. Servers get both
# usages, because they are clients of each other.
certificate() {
  if [[ -e $1.crt ]]; then return; fi
  [[ -e ca.key ]] || die "$dir/ca.key is missing: copy it there to create $1.crt"
  key "$1"
  openssl req -new -key "$1.key" -subj "/CN=$1" -out "$1.csr"
  printf 'basicConstraints=CA:FALSE\nextendedKeyUsage=%s\n%s\n' "$2" "${3:+subjectAltName=$3}" >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -sha256 -days "$days" \
    -extfile "$1.ext" -out "$1.crt" 2>/dev/null
  rm "$1.csr" "$1.ext"
}

names=DNS:localhost,IP:127.0.0.1
for host in "$@"; do
  if [[ $host =~ ^[0-9.]+$|: ]]; then names+=,IP:$host; else names+=,DNS:$host; fi
done
certificate nats serverAuth,clientAuth "$names"
for client in gateway processor consumer admin; do certificate "$client" clientAuth; done
