#!/bin/sh
# Unpack a program, and whatever of its libraries this machine lacks, from this Debian's or Ubuntu's packages:
# unpack.sh FOLDER PROGRAM PACKAGE… ; PROGRAM is its path in the packages, and `FOLDER/run` starts it with those libraries.
# Needs no root and installs nothing: apt gets a state of its own, so that it also works where its lists were removed.
set -eu
target=$1
program=$2
shift 2
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
apt-get -qq --yes --no-install-recommends --reinstall --download-only install "$@" >/dev/null
for package in "$work"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$work/root"; done
[ -x "$work/root/$program" ] || { echo "there is no $program in $*" >&2; exit 1; }
rm -rf "$work/root/usr/share/doc" "$work/root/usr/share/man"

echo "$program" >"$work/root/program"
cat >"$work/root/run" <<'END'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")
libraries=$(find "$root/usr/lib" "$root/lib" -maxdepth 3 -name '*.so*' -printf '%h\n' 2>/dev/null | sort -u | tr '\n' ':')
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:-}"
[ -d /etc/fonts ] || export FONTCONFIG_PATH="$root/etc/fonts"
exec "$root/$(cat "$root/program")" "$@"
END
chmod +x "$work/root/run"
rm -rf "$target"
mv "$work/root" "$target"
