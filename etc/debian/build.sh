#!/usr/bin/env bash
# Builds dist/cleanerd_VERSION_ARCHITECTURE.deb from this tree, on Debian with python3-venv and dpkg-dev:
#
#   etc/debian/build.sh
#
# The package has a virtual environment in /opt/cleanerd with all that cleanerd needs, a Java runtime included; units, man pages,
# completions and samples lie where Debian expects them. It needs the minor version of Python that built it.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=/usr/bin/python3 # Debian's: the package depends on it
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
home=$stage/opt/cleanerd

"$python" -m venv "$home"
"$home/bin/pip" install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt '.[jre]'
version=$("$home/bin/python" -c 'import cleanerd; print(cleanerd.__version__)')
architecture=$(dpkg --print-architecture)
minor=$("$python" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
next=$("$python" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1] + 1}")')

# A virtual environment contains its own path: this one is to run in /opt/cleanerd.
grep -rlIZ "$stage" "$home/bin" "$home/pyvenv.cfg" | xargs -0 -r sed -i "s|$stage||g"
rm -f "$home"/lib/python*/site-packages/cleanerd-*.dist-info/direct_url.json
"$home/bin/python" -m compileall -q -s "$stage" -p / "$home/lib" || true # some libraries carry files for other Pythons

shared=$home/share
install -D -m 644 -t "$stage/usr/lib/systemd/system" "$shared"/cleanerd/systemd/cleanerd.{service,socket}
install -D -m 644 -t "$stage/usr/lib/systemd/system/kafka.service.d" "$shared/cleanerd/systemd/kafka.service.d/cleanerd.conf"
install -D -m 644 "$shared/cleanerd/systemd/cleanerd.sysusers.conf" "$stage/usr/lib/sysusers.d/cleanerd.conf"
install -D -m 644 "$shared/cleanerd/systemd/cleanerd.tmpfiles.conf" "$stage/usr/lib/tmpfiles.d/cleanerd.conf"
for page in cleanerctl.1 cleanerd.8; do
  section=$stage/usr/share/man/man${page##*.}
  mkdir -p "$section" && gzip -9nc "$shared/man/man${page##*.}/$page" >"$section/$page.gz"
done
install -D -m 644 LICENSE "$stage/usr/share/doc/cleanerd/copyright"
ln -s /opt/cleanerd/share/cleanerd "$stage/usr/share/doc/cleanerd/examples"
mkdir -p "$stage/usr/bin" "$stage/usr/share/bash-completion/completions"
for program in cleanerd cleanerctl; do
  ln -s "/opt/cleanerd/bin/$program" "$stage/usr/bin/$program"
  "$home/bin/python" "$home/bin/$program" completion bash >"$stage/usr/share/bash-completion/completions/$program"
done

mkdir "$stage/DEBIAN"
install -m 755 -t "$stage/DEBIAN" etc/debian/postinst etc/debian/prerm etc/debian/postrm
sed -e "s/@version@/$version/; s/@architecture@/$architecture/; s/@minor@/$minor/; s/@next@/$next/" \
  -e "s/@size@/$(du -sk --apparent-size "$stage" | cut -f1)/" etc/debian/control.in >"$stage/DEBIAN/control"
find "$stage" -type d -exec chmod 755 {} +
mkdir -p dist
dpkg-deb --root-owner-group -Zgzip -z1 --build "$stage" "dist/cleanerd_${version}_$architecture.deb"
