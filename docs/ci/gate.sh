#!/usr/bin/env bash
# Handler latency gate: builds a driver at two commits, has both measured in VMs, and judged.
# Exit code: that of `profiler gate` (0 pass, 10 slower, 11 and above undecided; docs/gate-rule.md), else that of the command that failed.
# Needs Debian 12, root and the network; no KVM. action.yml and gitlab.yml call it.
#
#   variable  default          meaning
#   BASE      (none)           commit that the checked-out one is compared with
#   CHANGE    (none)           the change's own last commit, where the checked-out one may be a merge of it that was made to try it:
#                              then that merge's first parent is the base, which may be newer than BASE; else their merge base is
#   DRIVER    testbed          folder of the driver's sources
#   MODULE    hids_testbed.ko  the module that the build leaves in that folder
#   BUILD     (make)           how it is built there, with the kernel's headers in $HEADERS; by default `make KDIR="$HEADERS" CC=gcc-12`
#   HANDLERS  *                handlers to judge: a name or a glob; profiler chooses the loads that make the kernel call them
#   RULES     (gate.toml)      limits and budgets; by default the file beside this script. A file of the repository is read as it is in
#                              the base: a change does not choose what it is judged by
#   RELEASE   (none)           a commit or tag: the change is judged beside the driver at it, too, so that small steps do not add up
#   KERNEL    6.1              Debian's kernel that the driver is built for and measured on
#   PROFILER  .                folder of profiler's sources
#   CACHE     target/ci/cache  folder that keeps the baseline's recordings: with them the next change is gated in half the time
set -euo pipefail
BASE=${BASE:?set it to the commit that the change is compared with}
CHANGE=${CHANGE:-}
DRIVER=${DRIVER:-testbed}
MODULE=${MODULE:-hids_testbed.ko}
BUILD=${BUILD:-make KDIR=\"\$HEADERS\" CC=gcc-12}
HANDLERS=${HANDLERS:-*}
RULES=${RULES:-$(dirname "${BASH_SOURCE[0]}")/gate.toml}
KERNEL=${KERNEL:-6.1}
RELEASE=${RELEASE:-}
PROFILER=${PROFILER:-.}
CACHE=${CACHE:-target/ci/cache}
out=target/ci

# Tools that the runner's image lacks. `cargo xtask` installs all others itself.
apt_install() { apt-get update && apt-get install -y --no-install-recommends "$@"; }
command -v git >/dev/null || apt_install ca-certificates git
command -v cargo >/dev/null || {
    apt_install ca-certificates curl gcc libc6-dev
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal
    export PATH="$HOME/.cargo/bin:$PATH"
}
# In a container the checkout often belongs to another user, and git refuses to work in it.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0="$PWD"

fail() { echo "error: $*" >&2; exit 1; }
# A verdict, a program or a baseline's recording that the repository brings would pass for one of this run.
tracked=$(git ls-files -- "$out"; git ls-files -- "$CACHE" 2>/dev/null || true)
[[ ! -L target ]] || tracked=target
[[ -z $tracked ]] || fail "the repository has ${tracked%%$'\n'*}, where only the gate may write; remove it from the repository"
rm -rf "$out"/gate.* "$out/runs"

if [[ -n $CHANGE ]]; then
    if [[ $(git rev-parse --quiet --verify 'HEAD^2') == "$CHANGE" ]]; then
        BASE=HEAD^1
    else
        BASE=$(git merge-base "$BASE" HEAD) || fail "no commit is in both $BASE and HEAD; fetch the whole history"
    fi
fi
BASE=$(git rev-parse --verify "$BASE^{commit}")

# In a folder of its own: the job's may be everybody's, and the gate takes no recordings from such a place.
private=$(mktemp -d)
trap 'rm -rf "$private"' EXIT
rules=$(realpath --canonicalize-missing --no-symlinks --relative-to=. "$RULES")
if git cat-file -e "$BASE:$rules" 2>/dev/null; then
    git show "$BASE:$rules" >"$private/gate.toml"
elif git cat-file -e "HEAD:$rules" 2>/dev/null; then
    fail "$RULES comes with the change, and the base $BASE has none: merge it first, or leave RULES out"
else
    cp "$RULES" "$private/gate.toml"
fi

# profiler, a kernel to boot, and a boot that shows that VMs work here.
cargo install --locked --path "$PROFILER/profiler" --root "$out"
(cd "$PROFILER" && cargo xtask vm --kernel "$KERNEL" -- uname -r)
kernel=$PROFILER/target/kernels/$KERNEL
HEADERS=$(realpath "$kernel"/usr/src/linux-headers-*-amd64)
export HEADERS

# The driver at both commits.
build() {
    rm -rf "${out:?}/$1"
    git worktree prune
    git worktree add --detach "$out/$1" "$2"
    (cd "$out/$1/$DRIVER" && bash -euc "$BUILD")
}
build baseline "$BASE"
build candidate HEAD
release=()
if [[ -n $RELEASE ]]; then
    build release "$(git rev-parse --verify "$RELEASE^{commit}")"
    release=(--release "$out/release/$DRIVER/$MODULE")
fi

# `*` would be all functions; without it those that the driver gives to the kernel are judged.
handlers=()
[[ $HANDLERS == '*' ]] || handlers=(--handler "$HANDLERS")
mkdir -m 700 "$private/baselines"
mkdir -p "$CACHE"
cp "$CACHE"/*.json "$private/baselines" 2>/dev/null || true
code=0
"$out/bin/profiler" gate --kernel "$kernel" \
    --baseline "$out/baseline/$DRIVER/$MODULE" --candidate "$out/candidate/$DRIVER/$MODULE" "${handlers[@]}" "${release[@]}" \
    --config "$private/gate.toml" --cache "$private/baselines" --out "$out/runs" --json "$out/gate.json" --junit "$out/gate.xml" --markdown "$out/gate.md" \
    --html "$out/gate.html" || code=$?
rm -f "$CACHE"/*.json
cp "$private"/baselines/*.json "$CACHE" 2>/dev/null || true
# An output of the step of GitHub Actions.
if [[ -n ${GITHUB_OUTPUT:-} && -e $out/gate.json ]]; then
    sed -n 's/^  "outcome": "\(.*\)",$/outcome=\1/p' "$out/gate.json" >>"$GITHUB_OUTPUT"
fi
exit "$code"
