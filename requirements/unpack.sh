#!/bin/sh
# Unpack a program, and the shared libraries that its package names, from this Debian's or Ubuntu's packages:
# unpack.sh FOLDER PACKAGE. Needs no root and installs nothing: apt gets a state of its own, so that it also works where
# its lists were removed.
set -eu
target=$1
package=$2
work=$target.part
rm -rf "$work"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
work=$(cd "$work" && pwd)
trap 'rm -rf "$work"' EXIT

cat >"$work/apt.conf" <<END
Dir::State "$work";
Dir::State::Lists "$work/lists";
Dir::State::Status "/var/lib/dpkg/status";
Dir::Cache "$work/cache";
APT::Sandbox::User "";
Debug::NoLocking "true";
END
export APT_CONFIG="$work/apt.conf"

apt-get -qq update
libraries=$(apt-cache depends "$package" | sed -n 's/^ *Depends: \(lib[^ ]*\)$/\1/p' | grep -v -e '^libc6$' -e '^libjs-' || true)
cd "$work"
# shellcheck disable=SC2086 # one word a library
apt-get -qq download "$package" $libraries
for each in *.deb; do dpkg-deb --extract "$each" root; done
cd - >/dev/null
rm -rf "$target"
mv "$work/root" "$target"
