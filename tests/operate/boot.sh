# boot.sh DIRECTORY CGROUP TREE SITE: systemd as PID 1 over a copy of this machine's root that goes away, with cleanerd's units.
# The root is DIRECTORY/root. cleanerd runs from TREE with the packages in SITE, in an environment in /opt/cleanerd.
set -eu
memory=$1/memory root=$1/root tree=$3
mkdir "$memory" "$root"
mount -t tmpfs -o mode=755 tmpfs "$memory"
mkdir "$memory/upper" "$memory/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$memory/upper,workdir=$memory/work" "$root"

etc=$root/etc/systemd/system
rm -rf "$etc"/*.wants
: >"$root/etc/machine-id"
ln -sf /lib/systemd/system/multi-user.target "$etc/default.target"
for unit in systemd-{udevd,networkd,resolved,logind,timesyncd}.service systemd-udevd-{kernel,control}.socket \
  getty@tty1.service console-getty.service ssh.service cron.service; do
  ln -sf /dev/null "$etc/$unit"
done

rm -rf "$root/opt/cleanerd"
/usr/bin/python3 -m venv --without-pip "$root/opt/cleanerd"
mkdir -p "$root/opt/site" "$root/opt/tree/cleanerd"
mount --bind "$4" "$root/opt/site"
mount --bind "$tree/cleanerd" "$root/opt/tree/cleanerd"
packages=$(echo "$root"/opt/cleanerd/lib/python3.*/site-packages)
printf '/opt/tree\n/opt/site\n' >"$packages/tree.pth"
for program in cleanerd:cleanerd.cli.main cleanerctl:cleanerd.cli.ctl.main; do
  path=$root/opt/cleanerd/bin/${program%%:*}
  printf '#!/opt/cleanerd/bin/python3\nimport sys\nfrom %s import main\nsys.exit(main())\n' "${program##*:}" >"$path"
  chmod 755 "$path"
done
install -m 644 -t "$etc" "$tree/systemd/cleanerd.service" "$tree/systemd/cleanerd.socket"
install -D -m 644 -t "$etc/kafka.service.d" "$tree/systemd/kafka.service.d/cleanerd.conf"
install -D -m 644 "$tree/systemd/cleanerd.sysusers.conf" "$root/etc/sysusers.d/cleanerd.conf"
install -D -m 644 "$tree/systemd/cleanerd.tmpfiles.conf" "$root/etc/tmpfiles.d/cleanerd.conf"
mkdir -p "$root/etc/kafka" "$root/var/lib/kafka"

echo $$ >"$2/cgroup.procs"
exec unshare --pid --fork --mount --uts --ipc --cgroup --propagation private bash -euc '
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do touch "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
mkdir dev/shm dev/pts old
mount -t tmpfs tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
: >dev/console
pivot_root . old
umount -l old
export container=test
exec /lib/systemd/systemd --system
' boot "$root" </dev/null
