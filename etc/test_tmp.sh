#!/bin/sh
# Prints a directory for files of tests that need no disk: in memory, where creating a file costs a tenth, if there is
# enough of it and the mount permits what tests do (programs, set-user-id programs, devices).
set -eu
memory=/dev/shm
free_gib() { df --output=avail -BG "$memory" 2>/dev/null | tail -n 1 | tr -dc 0-9; }
available_gib() { awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo; }
options=$(awk -v at="$memory" '$2 == at && $3 == "tmpfs" {print $4}' /proc/mounts)
case ,$options, in
    ,, | *,noexec,* | *,nosuid,* | *,nodev,* | *,ro,*) ;;
    *)
        if [ -z "${TMPDIR:-}" ] && [ -w "$memory" ] && [ "$(free_gib)" -ge 8 ] && [ "$(available_gib)" -ge 12 ]; then
            echo "$memory"
            exit
        fi
        ;;
esac
echo "${TMPDIR:-/tmp}"
