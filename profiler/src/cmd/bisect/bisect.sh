#!/bin/sh
# Looks for the first commit of a driver that made a handler slower: `git bisect run` in a work tree of its own. What a step said of
# a commit is kept beside the tree, in the folder of git that all work trees share, so that a bisection goes on after a stop.
# Arguments: the script of a step, the repository, the good and the bad revision, the build command, the module's file or nothing,
# `true` to start over, the process that bisects, and the judge with its options.
# Standard output has the result, standard error the steps and, after `error: `, why it failed. The exit code is profiler's. A line of
# standard input says that the result is printed.
step=$1 repository=$2 good=$3 bad=$4 build=$5 module=$6 start_over=$7 profiler=$8
shift 8
start=$PWD
# A hook of git that calls this would name another repository, CDPATH another folder; the other two are for a report of the whole.
# shellcheck disable=SC2046 # one name a word
unset $(command git rev-parse --local-env-vars) CDPATH GITHUB_ACTIONS GITHUB_STEP_SUMMARY

fail() {
    printf 'error: %s\n' "$2" >&2
    exit "$1"
}
# Hooks of the repository are for its users, and could end a step or change its tree.
git() {
    LC_ALL=C command git -c core.hooksPath=/dev/null "$@"
}
must() {
    words=$(git "$@" 2>&1) || fail 7 "\`git $*\` failed: $words"
}
# Never an option, whatever it begins with.
commit() {
    git rev-parse --verify --quiet --end-of-options "$1^{commit}" || fail 2 "$root has no commit \`$1\`"
}
described() {
    git log -1 --abbrev=12 --format='%h (%s)' "$1"
}
# Commits with this mark in git's log. A bisection that goes on after a stop may mark one again.
marked() {
    git -C "$tree" bisect log 2>/dev/null | sed -n "s/^# $1: \[\([0-9a-f]*\)\].*/\1/p" | awk '!seen[$0]++'
}
# Removes all of a bisection but the lock. Git refuses a tree that it has removed in part.
forget() {
    [ ! -e "$tree" ] || git worktree remove --force --force "$tree" 2>"$folder/clean.log" ||
        { rm -rf "$tree" && git worktree prune; } || fail 8 "cannot remove $tree"
    rm -rf "$folder/said" "$folder/runs" "$folder/question" "$folder/good.ko" "$folder/failure" "$folder"/*.log
}
# Runs the script of a step in the work tree by a command, and the judge after `--`; what ends all is in a file: the judge's exit
# code, and its last line. Other codes are the shell's: it could not start the gate, or a signal ended that.
run() {
    rm -f "$folder/failure"
    # The shell's own failures have the exit codes of git.
    (cd "$tree" && : >"$folder/git.log") 2>/dev/null || fail 8 "cannot write $folder/git.log, or use $tree"
    by=$1
    shift
    # shellcheck disable=SC2086 # one word an argument
    (cd "$tree" && exec setpriv --pdeathsig KILL $by sh -c "$step" sh "$folder" "$build" "$module" "$start" "$profiler" "$@") \
        >"$folder/git.log" 3<&-
    ended=$?
    [ -f "$folder/failure" ] || return 0
    read -r code text <"$folder/failure"
    case $code in
    [1-9] | 1[0-6] | 129 | 130 | 143) ;;
    *) code=3 ;;
    esac
    text=${text#error: }
    fail "$code" "${text:-a step ended with exit code $code and no message: is memory short?}"
}
# A step on an end of the search.
end() {
    revision=$1
    shift
    must -C "$tree" checkout --quiet --force --detach "$revision"
    run '' "$@"
    case $ended in
    0 | 1 | 125) ;;
    *) fail 3 "a step ended with exit code $ended, as by a signal: is memory short?" ;;
    esac
    judged=$(cat "$folder/said/$revision")
}

command -v git >/dev/null || fail 3 'cannot run git: install it'
for tool in flock setpriv; do
    command -v "$tool" >/dev/null || fail 3 "cannot run $tool: install util-linux"
done
must -C "$repository" rev-parse --show-toplevel
{ root=$(git -C "$repository" rev-parse --show-toplevel) && cd "$root"; } ||
    fail 7 "cannot enter the root of $repository"
good=$(commit "$good") || exit
bad=$(commit "$bad") || exit
{ [ "$good" != "$bad" ] && git merge-base --is-ancestor "$good" "$bad"; } ||
    fail 2 "the good revision $(described "$good") is not an ancestor of the bad one, $(described "$bad")"
folder=$(cd "$(git rev-parse --git-common-dir)" && pwd)/profiler-bisect || fail 7 "cannot enter the git folder of $root"
tree=$folder/tree
mkdir -p "$folder" || fail 8 "cannot write $folder"
# Steps have the lock as their input: it stays locked until they end.
(: <>"$folder/lock") 2>/dev/null || fail 8 "cannot write $folder/lock"
exec 3<&0 0<>"$folder/lock"
flock --nonblock 0
case $? in
0) ;;
1) fail 2 'another bisection of this repository is running, or the last step of one that was killed: let it end first' ;;
*) fail 8 "cannot lock $folder/lock" ;;
esac
"$start_over" && forget
mkdir -p "$folder/said" || fail 8 "cannot write $folder"
# The program's name has the number of its process; messages are kept where it is said now.
question=$(
    printf '%s\n' "$good" "$bad" "$build" "$module"
    while shift && [ $# != 0 ] && [ "$1" != --logs ]; do printf '%s\n' "$1"; done
)
if [ ! -f "$folder/question" ]; then
    { printf '%s\n' "$question" >"$folder/question.new" && mv "$folder/question.new" "$folder/question"; } ||
        fail 8 "cannot write $folder"
elif [ "$(cat "$folder/question")" != "$question" ]; then
    fail 2 'a bisection between other revisions, or with another build command or other limits, was begun in this repository: say --start-over to forget it'
fi
[ -e "$tree/.git" ] || must worktree add --quiet --force --detach "$tree" "$good"
if [ ! -e "$folder/good.ko" ]; then
    # The judge of the good one takes it: whole, as it is not built again after a stop.
    # shellcheck disable=SC2016 # for the judge's shell
    end "$good" sh -c 'cp "$4" "$2.new" && mv "$2.new" "$2"' sh
    [ "$ended" = 0 ] || fail 7 "the good revision $(described "$good") cannot be measured: $judged"
fi
if ! git -C "$tree" bisect log >"$folder/git.log" 2>&1; then
    end "$bad" "$@"
    [ "$ended" = 1 ] || fail 11 "$(described "$bad") is not shown to be slower than $(described "$good"): $judged"
    must -C "$tree" bisect start "$bad" "$good"
fi
# A parent and its child are decided by both ends.
if [ -z "$(marked 'first bad commit')" ]; then
    # The script ends with git, the gate with the script, and git with this process: nothing goes on when that is killed.
    run 'git -c core.hooksPath=/dev/null bisect run setpriv --pdeathsig KILL' "$@"
    case $ended in
    # 2: only commits that were left out are left, or git failed.
    0 | 2) ;;
    *) fail 7 "\`git bisect run\` ended with exit code $ended" ;;
    esac
fi
first=$(marked 'first bad commit')
possible=$(marked 'possible first bad commit')
[ "$first$possible" ] || fail 7 "\`git bisect run\` found no commit: $(tail -n 1 "$folder/git.log")"
result=$(
    if [ "$first" ]; then
        printf 'bisect: %s is the first slower commit\n' "$(described "$first")"
        cat "$folder/said/$first"
    else
        echo 'bisect: one of these is the first slower commit:'
        for hash in $possible; do printf '  %s\n' "$(described "$hash")"; done
    fi
    set -- "$folder"/said/*
    printf 'bisect: %s builds; left out:\n' $#
    for hash in $(marked skip); do printf '  %s: %s\n' "$(described "$hash")" "$(head -n 1 "$folder/said/$hash")"; done
)
printf '%s\n' "$result" | sed '$s/; left out:$//'
# Its end. What is not printed is not forgotten.
exec >/dev/null
read -r _ <&3 || fail 8 'cannot write the result'
forget
rm -rf "$folder"
[ "$first" ] ||
    fail 11 "the first slower commit is one of $(printf '%s\n' "$possible" | wc -l): not all can be measured"
