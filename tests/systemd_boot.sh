#!/usr/bin/env bash
# Starts kvistd by each unit of deploy/systemd under a real systemd: PID 1 of namespaces of its own, over a throw-away copy of this
# machine's files. By hand: it needs root with CAP_SYS_ADMIN, a writable cgroup hierarchy, Debian's systemd and a release build.
#
# usage: tests/systemd_boot.sh      the last line is "N passed, N failed"; half a minute a unit
set -euo pipefail
cd "$(dirname "$0")/.."
project=$PWD

inside() {  # unit, root: as PID 1 of the namespaces; becomes systemd
  local unit=$1 root=$2
  mount --make-rprivate /
  mount -t tmpfs tmpfs "$root"
  mkdir "$root"/{upper,work,all}
  mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/all"
  cd "$root/all"
  mount -t proc proc proc
  mount --rbind /sys sys
  mount --rbind /dev dev
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
  else
    mount -t tmpfs tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
  fi
  mount -t tmpfs tmpfs run
  mount -t tmpfs tmpfs tmp
  install -m 755 "$project"/build/release/bin/kvistd usr/sbin/
  install -m 755 "$project"/build/release/bin/kvistctl usr/bin/
  sed 's/^WatchdogSec=.*/WatchdogSec=4s/' "$project/deploy/systemd/$unit" >etc/systemd/system/kvistd.service
  [ "$unit" != kvistd.service ] || install -m 644 "$project"/deploy/systemd/kvistd-gpu.service etc/systemd/system/  # to change to
  install -D -m 644 "$project"/deploy/systemd/kvist.sysusers usr/lib/sysusers.d/kvist.conf
  install -D -m 644 "$project"/deploy/systemd/kvist.tmpfiles usr/lib/tmpfiles.d/kvist.conf
  chroot . systemd-sysusers kvist.conf
  chroot . systemd-tmpfiles --create kvist.conf
  install -m 644 "$project"/deploy/systemd/kvistd.toml etc/kvistd/
  install -m 755 "$project/tests/systemd_boot.sh" probe.sh
  printf '[Unit]\nDefaultDependencies=no\nWants=kvistd.service\nAfter=kvistd.service\n[Service]\nType=oneshot\nExecStart=/probe.sh --probe\n' \
    >etc/systemd/system/probe.service
  exec chroot . /usr/bin/env -i container=kvist PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=probe.service --log-target=null
}

said() { systemctl show -p "$1" --value "${2:-kvistd}"; }
check() { if [[ $2 == $3 ]]; then echo "ok      $1"; else echo "FAILED  $1: $2"; fi; }  # what, found, pattern
soon() { for _ in $(seq 100); do "$@" && return; sleep 0.2; done; return 1; }

probe() {  # as a service beside kvistd's
  local config=/etc/kvistd/kvistd.toml good pid
  good=$(<$config)
  check 'kvistd is active when it is ready' "$(said ActiveState)" active
  check 'its status says what it serves' "$(said StatusText)" 'serving engines on /run/kvist/engine.sock*'
  check 'it has no capabilities' "$(grep -cE '^Cap(Prm|Eff|Bnd|Amb):.0{16}$' "/proc/$(said MainPID)/status")" 4
  check "the sockets are their groups'" "$(stat -c '%U:%G %a' /run/kvist/*.sock | tr '\n' ' ')" 'kvistd:kvist-admin 660 kvistd:kvist 660 '
  check 'kvistctl reaches it' "$(kvistctl -o json status | grep -c '"pid"')" 1
  printf '%s\n[lease]\nmax = "30s"\n[copy]\nthreads = 3\n' "$good" >$config
  check 'a reload is a success' "$(systemctl reload kvistd && echo yes)" yes
  check 'and says what needs a restart' "$(said StatusText)" '*waiting for a restart: copy.threads'
  printf '%s\n[lease]\nmaxx = "30s"\n' "$good" >$config
  check 'a wrong reload is a failure' "$(systemctl reload kvistd 2>/dev/null || echo refused)" refused
  check 'and changes nothing' "$(said ActiveState), $(said StatusText)" 'active, *reload refused: */kvistd.toml:*: lease.maxx: unknown key*'
  echo "$good" >$config
  pid=$(said MainPID)
  kill -STOP "$pid"
  restarted() { [ "$(said NRestarts)" = 1 ] && [ "$(said ActiveState)" = active ] && [ "$(said MainPID)" != "$pid" ]; }
  check 'one that hangs is restarted' "$(soon restarted && echo yes)" yes
  systemctl stop kvistd
  check 'it stops cleanly' "$(said Result) $(said ExecMainStatus)" 'success 0'
  if [ -e /etc/systemd/system/kvistd-gpu.service ]; then
    systemctl start kvistd
    check 'the unit for GPUs takes its place at once' \
      "$(systemctl start kvistd-gpu && said ActiveState) $(said ActiveState kvistd-gpu) $(said NRestarts kvistd-gpu)" 'inactive active 0'
    check 'and it the other one'"'"'s' \
      "$(systemctl start kvistd && said ActiveState kvistd-gpu) $(said ActiveState) $(said NRestarts)" 'inactive active 0'
    systemctl stop kvistd
  fi
  echo end
}

case "${1:-}" in
  --inside) inside "$2" "$3" ;;
  --probe) probe >/probe.out 2>&1; exit ;;
  '') ;;
  *) sed -n '2,5p' "$0"; exit 2 ;;
esac

cgroups=/sys/fs/cgroup
[ -e $cgroups/cgroup.controllers ] || cgroups=/sys/fs/cgroup/systemd
cgroup=$cgroups/kvist-boot-$$
root=$(mktemp -d)
mkdir "$cgroup"
running=''
cleanup() {
  [ -z "$running" ] || { kill -KILL "$running" 2>/dev/null; wait "$running" 2>/dev/null; } || true
  sleep 1
  find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
  rmdir "$root"
}
trap cleanup EXIT

passed=0; failed=0
for unit in kvistd.service kvistd-gpu.service; do
  (echo $BASHPID >"$cgroup/cgroup.procs"; exec unshare --fork --pid --mount --ipc --uts --cgroup --kill-child "$0" --inside "$unit" "$root") \
    </dev/null >/dev/null 2>&1 &
  running=$!
  pid_1=''
  for _ in $(seq 300); do
    pid_1=$(pgrep -P "$running" || true)
    [ -z "$pid_1" ] || ! grep -qx end "/proc/$pid_1/root/probe.out" 2>/dev/null || break
    sleep 0.2
  done
  echo "== $unit"
  out=$(cat "/proc/$pid_1/root/probe.out" 2>/dev/null || true)
  echo "$out" | grep -vx end || true
  passed=$((passed + $(grep -c '^ok ' <<<"$out" || true)))
  failed=$((failed + $(grep -c '^FAILED ' <<<"$out" || true)))
  grep -qx end <<<"$out" || { echo 'FAILED  it did not come to the end'; failed=$((failed + 1)); }
  kill -KILL "$running"; wait "$running" 2>/dev/null || true
  running=''
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
