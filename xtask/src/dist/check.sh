#!/bin/sh
# Installs, runs and removes the package, then runs the static binary, in a clean Debian root.
# Arguments: the version, the machine. Runs as root of a chroot with /profiler.deb and /profiler.tar.gz.
set -eux

# Paths of all files and folders but those that dpkg, man-db and systemd-analyze write themselves.
files() {
    find / -xdev ! -path '/proc/*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' \
        ! -path '/var/cache/man/*' ! -path '/tmp/*' ! -path '/run/systemd*' | sort
}

files >/tmp/before
dpkg --install /profiler.deb
test "$(command -v profiler)" = /usr/bin/profiler
test "$(profiler --version)" = "profiler $1"
profiler doctor >/tmp/doctor || test $? = 3
grep -q . /tmp/doctor
man --where profiler-gate | grep -q /usr/share/man/man1/profiler-gate.1
man profiler | grep -q 'profiler-gate(1)'
bash -c '. /usr/share/bash-completion/bash_completion
    _completion_loader profiler || test $? = 124
    complete -p profiler'
test -s /usr/share/zsh/vendor-completions/_profiler
test -s /usr/share/fish/vendor_completions.d/profiler.fish
systemd-analyze verify /usr/lib/systemd/system/profiler.service
test -x /usr/lib/profiler/profiler-aarch64
for name in copyright LICENSE-MIT LICENSE-APACHE README.md docs/serve.md; do
    test -s "/usr/share/doc/profiler/$name"
done
dpkg --purge profiler
files >/tmp/after
diff /tmp/before /tmp/after

tar --extract --gzip --file /profiler.tar.gz --directory /tmp
folder=/tmp/profiler-$1-$2
test "$("$folder/profiler" --version)" = "profiler $1"
"$folder/profiler" doctor >/tmp/doctor || test $? = 3
man "$folder/share/man/man1/profiler-run.1" | grep -q -- --duration
test -x "$folder/profiler-aarch64"
# It needs nothing of the system: no loader, no library.
test "$(chroot "$folder" /profiler --version)" = "profiler $1"
