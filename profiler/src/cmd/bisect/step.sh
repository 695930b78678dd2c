#!/bin/sh
# One step of a bisection, in the work tree: builds what is checked out and judges it beside the good build. The exit code is git's:
# 0 good, 1 bad, 125 skip; 128 ends all.
# Arguments: the bisection's folder, the build command, the module's file or nothing, the judge's folder, the process that bisects, and
# the judge with its options.
folder=$1 build=$2 module=$3 start=$4 profiler=$5
shift 5
# Git names this tree to what it starts; a build may have repositories of its own.
# shellcheck disable=SC2046 # one name a word
unset $(git rev-parse --local-env-vars)
clean() {
    { git -c core.hooksPath=/dev/null reset --quiet --hard && git clean --quiet -ffdx; } 2>"$folder/clean.log" ||
        { printf '3 the work tree cannot be emptied: %s\n' "$(tail -n 1 "$folder/clean.log")" >"$folder/failure" && return 1; }
}
# What an earlier build left could hide that this one fails, or keep git from the next commit.
clean || exit 128
trap clean EXIT
commit=$(git log -1 --abbrev=12 --format='%h (%s)')
said=$folder/said/$(git rev-parse HEAD)
verdict=125
# Not by echo, which could make several lines of a subject.
printf 'building %s\n' "$commit" >&2
sh -c "$build" >"$folder/build.log" 2>&1
status=$?
[ "$module" ] || found=$(find . -type f -name '*.ko')
found=$PWD/${module:-$found}
if [ $status != 0 ]; then
    last=$(grep -v '^[[:space:]]*$' "$folder/build.log" | tail -n 1)
    printf '%s\n' "\`$build\` ended with exit code $status: ${last:-no output}" >"$said"
elif [ ! -f "$found" ]; then
    printf '%s\n' "\`$build\` made no ${module:-module, or several: name one with --module}" >"$said"
elif ! kill -0 "$profiler"; then
    # Nobody waits for the verdict any more.
    exit 128
else
    # The good build is measured once.
    (cd "$start" && exec setpriv --pdeathsig KILL "$@" --baseline "$folder/good.ko" --candidate "$found" --cache "$folder/runs") \
        >"$said" 2>&1
    code=$?
    case $code in
    0) verdict=0 ;;
    10) verdict=1 ;;
    # This build: its file, its handlers, its loads, its guest or its runs.
    4 | 5 | 6 | 7 | 11 | 12 | 13 | 15) ;;
    # This machine.
    *) printf '%s\n' "$code $(tail -n 1 "$said")" >"$folder/failure" && exit 128 ;;
    esac
fi
case $verdict in 0) word=good ;; 1) word=slower ;; *) word='left out' ;; esac
printf '%s\n' "$commit: $word: $(head -n 1 "$said")" >&2
exit $verdict
