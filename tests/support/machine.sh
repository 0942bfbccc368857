#!/usr/bin/env bash
# Boots systemd in namespaces of its own, with this host's programs and files: a machine for installing the service.
#
#   machine.sh NAME DIRECTORY
#
# Files below DIRECTORY/files are laid over the host's files. Files below DIRECTORY/programs appear in /usr/local/bin.
# Writes go to memory. The machine ends when this process is killed; only the control groups called NAME remain. Needs
# root, and the packages systemd and docker.io.
set -euo pipefail

# These units are useless here or affect the whole host.
masked='timers.target getty.target systemd-udevd.service systemd-udev-trigger.service systemd-sysctl.service
    systemd-modules-load.service systemd-logind.service systemd-networkd.service systemd-resolved.service
    systemd-timesyncd.service systemd-remount-fs.service apparmor.service networking.service console-getty.service'

# Prints the control groups of this process: lines of "controllers path".
own_groups() {
    local line lines controllers path
    mapfile -t lines </proc/self/cgroup
    for line in "${lines[@]}"; do
        IFS=: read -r _ controllers path <<<"$line"
        echo "${controllers:-unified} $path"
    done
}

# Prints the directory of a hierarchy.
hierarchy() {
    local directory=/sys/fs/cgroup/${1#name=}
    # A host with the unified hierarchy only.
    if [[ $1 == unified && ! -d $directory ]]; then directory=/sys/fs/cgroup; fi
    echo "$directory"
}

outside() {
    local controllers path group
    own_groups | while read -r controllers path; do
        group=$(hierarchy "$controllers")${path%/}/$1
        mkdir "$group"
        # A new group has neither processors nor memory.
        if [[ $controllers == cpuset ]]; then
            cat "${group%/*}/cpuset.cpus" >"$group/cpuset.cpus"
            cat "${group%/*}/cpuset.mems" >"$group/cpuset.mems"
        fi
        echo $$ >"$group/cgroup.procs"
    done
    exec unshare --mount --pid --fork --kill-child --net --uts --ipc --cgroup "$0" --inside "$2"
}

mount_groups() {
    local controllers directory
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    own_groups | while read -r controllers _; do
        directory=.$(hierarchy "$controllers")
        mkdir -p "$directory"
        case $controllers in
        unified) mount -t cgroup2 cgroup2 "$directory" ;;
        name=*) mount -t cgroup -o "none,$controllers" cgroup "$directory" ;;
        *) mount -t cgroup -o "$controllers" cgroup "$directory" ;;
        esac
    done
}

make_devices() {
    local device
    mount -t tmpfs -o mode=755 tmpfs dev
    for device in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"; done
    mknod -m 666 dev/tty c 5 0
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
    mount -t tmpfs tmpfs dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
}

inside() {
    local machine=$1/machine program unit directory
    ip link set lo up
    mkdir -p "$machine"
    mount -t tmpfs tmpfs "$machine"
    mkdir "$machine"/{upper,work,root}
    cp -R "$1/files/." "$machine/upper"
    mkdir -p "$machine/upper/usr/local/bin" "$machine/upper/etc/systemd/system" "$machine/upper/old"
    : >"$machine/upper/etc/fstab"
    for unit in $masked; do ln -sf /dev/null "$machine/upper/etc/systemd/system/$unit"; done
    mount -t overlay -o "lowerdir=/,upperdir=$machine/upper,workdir=$machine/work" overlay "$machine/root"
    cd "$machine/root"
    for program in "$1"/programs/*; do
        : >"usr/local/bin/${program##*/}"
        mount --bind "$(readlink -f "$program")" "usr/local/bin/${program##*/}"
    done
    mount -t proc proc proc
    # All settings but those of the network affect the whole host.
    mount --bind proc/sys proc/sys
    mount --bind proc/sys/net proc/sys/net
    mount -o remount,bind,ro proc/sys
    mount -t sysfs sysfs sys
    mount_groups
    make_devices
    for directory in run tmp var/lib/docker var/lib/containerd; do
        mkdir -p "$directory"
        mount -t tmpfs -o mode=755 tmpfs "$directory"
    done
    pivot_root . old
    umount --lazy /old
    mount --make-rshared /
    exec env -i container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --unit=basic.target </dev/null
}

case $1 in
--inside) inside "$2" ;;
*) outside "$1" "$2" ;;
esac
