#!/bin/sh
# The root file system under all images: rootfs.sh FOLDER [APT-SOURCES]
#
# Debian 12's Python 3.11 and the libraries that it and our wheels load, unpacked rather than installed: no shell, no
# package manager, no program but Python. Both the Dockerfile and e2e/images call this, so images built with and without
# a Docker engine hold the same. Needs root and mmdebstrap, which knows Debian's mirrors and keys on any distribution;
# APT-SOURCES names other mirrors.
set -eu
umask 022

packages="
  base-files ca-certificates media-types
  libc6 libgcc-s1 libstdc++6 gcc-12-base
  libbz2-1.0 libexpat1 libffi8 liblzma5 libssl3 libuuid1 zlib1g
  python3.11-minimal libpython3.11-minimal libpython3.11-stdlib"
export packages

# Exactly these packages, without what only their installation scripts need. Their control data stays where vulnerability
# scanners look.
# shellcheck disable=SC2016 # mmdebstrap's shell expands it
unpack='
  cd "$1" && mkdir -p var/lib/dpkg/status.d && export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
  apt-get --quiet --quiet --option APT::Sandbox::User=root download $packages
  for deb in *.deb; do
    dpkg-deb --extract "$deb" .
    dpkg-deb --field "$deb" > "var/lib/dpkg/status.d/$(dpkg-deb --field "$deb" Package)"
    rm "$deb"
  done'
mmdebstrap --quiet --variant=custom --format=directory --customize-hook="$unpack" bookworm "$1" ${2:+"$2"}
cd "$1"

# What the packages' scripts would have made.
ln -s python3.11 usr/bin/python3
cat usr/share/ca-certificates/mozilla/*.crt > etc/ssl/certs/ca-certificates.crt
mkdir -p usr/lib/ssl && ln -s /etc/ssl/certs /etc/ssl/openssl.cnf usr/lib/ssl/
echo 'hosts: files dns' > etc/nsswitch.conf
echo 'root:x:0:0:root:/root:/sbin/nologin
nonroot:x:65532:65532:nonroot:/nonexistent:/sbin/nologin' > etc/passwd
echo 'root:x:0:
nonroot:x:65532:' > etc/group

# What nothing reads at run time, and modules whose libraries are not here; copyrights stay. A container gets its own
# /dev and /etc/hosts.
find usr/share/doc -type f ! -name copyright -delete
(cd usr/lib/python3.11/lib-dynload && rm _crypt.* _curses* _dbm.* _sqlite3.* nis.* readline.* _test* _xxtest* xx*)
rm -rf dev/* usr/sbin/* var/lock etc/apt etc/dpkg etc/fstab etc/hostname etc/resolv.conf \
  usr/share/ca-certificates usr/share/locale usr/share/man usr/share/lintian usr/lib/*/gconv \
  var/cache/apt var/lib/apt var/log/apt var/lib/dpkg/status

# Images are read-only, so Python could never keep what it compiles: it is compiled here, once, and never checked against
# its source.
chroot . /usr/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.11
