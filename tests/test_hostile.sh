#!/usr/bin/env bash
# A run directory that an attacker filled: links, pipes, devices, folders and files of other owners in place
# of each file that a run writes. Nothing outside the directory changes, no start hangs, and a refusal is one
# line. HOSTILE_BY=1 tries all of them, otherwise every HOSTILE_BY-th.
. "$(dirname "$0")/shell_lib.sh"
by=${HOSTILE_BY:-5} hang_s=${HANG_S:-10}
cp "$brim" ./brim && chmod 755 . brim
head -c 20000 "$here/recipes/data/tinyshakespeare.txt" >text.txt
cat >tiny.yaml <<END
run: r
steps: 1
step_tokens: 64
device: cpu
threads: 1
model: {layers: 1, width: 16, heads: 2, vocab: 256, context: 16}
optim: {lr: 3e-3, warmup: 0}
data: {kind: text, train: $dir/text.txt}
eval: {every: 1, sequences: 4}
checkpoint: {every: 1, keep: 1}
END
chmod 644 text.txt tiny.yaml
# Owners and modes mean nothing to root: the runs belong to somebody else then.
as=()
if [ "$(id -u)" -eq 0 ] && setpriv --reuid=65534 --regid=65534 --clear-groups true 2>/dev/null; then
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
fi
own() { if [ ${#as[@]} -gt 0 ]; then chown -hR 65534:65534 "$@"; fi; }
mkdir base && own base
BRIM_RUNS=$dir/base "${as[@]}" ./brim train tiny.yaml >seen 2>&1
verdict "a run without disturbance" $? "$(tail -n 1 seen)"

first=checkpoints/step-00000001
names="lock log.txt metrics.jsonl recipe.yaml plan.txt machine.txt checkpoints
       $first checkpoints/step-00000002
       $first/DONE $first/state.json $first/model.safetensors checkpoints/.tmp-x ."
kinds="link dangling tofolder pipe device folder hardlink unreadable readonly foreign socket"

make_outside() {
    rm -rf outside && mkdir -p outside/folder/step-00000001
    echo precious >outside/file; echo precious >outside/folder/step-00000001/DONE
    echo precious >outside/folder/kept; chmod -R a+rwX outside; own outside
}
state_of_outside() { find outside -printf '%p %y %m %T@ %s\n' | sort; find outside -type f -exec cat {} +; }

put() { # path, kind: 1 when this machine cannot make it
    rm -rf "$1"
    case $2 in
        link) ln -s "$dir/outside/file" "$1" ;;
        dangling) ln -s "$dir/outside/new" "$1" ;;
        tofolder) ln -s "$dir/outside/folder" "$1" ;;
        pipe) mkfifo "$1" ;;
        device) mknod "$1" c 1 3 2>/dev/null || return 1 ;;
        folder) mkdir -p "$1/in" ;;
        hardlink) ln outside/file "$1" 2>/dev/null || return 1 ;;
        unreadable) echo x >"$1"; chmod 000 "$1" ;;
        readonly) echo x >"$1"; chmod 444 "$1" ;;
        foreign) echo x >"$1"; chmod 600 "$1" ;;
        socket) python3 -c 'import socket,sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' \
            "$1" 2>/dev/null || return 1 ;;
    esac
    [ "$2" = foreign ] || own "$1" 2>/dev/null
    return 0
}

# name, kind, begun: one start; its exit code is rc, what outside was like is before. 1: cannot be made here.
try() {
    local at=runs/r/$1
    make_outside
    rm -rf runs && mkdir -p runs/r
    [ "$3" = yes ] && cp -a base/r runs/
    mkdir -p "runs/r/$(dirname "$1")"
    own runs
    [ "$1" = . ] && at=runs/r
    put "$at" "$2" || return 1
    before=$(state_of_outside)
    BRIM_RUNS=$dir/runs timeout -k 1 "$hang_s" "${as[@]}" ./brim train tiny.yaml steps=2 >seen 2>&1
    rc=$?
} 2>/dev/null # the shell's word on jobs that were killed

n=0 tried=0 bad=0
for begun in no yes; do
    for name in $names; do
        for kind in $kinds; do
            n=$((n + 1))
            [ $((n % by)) -eq 0 ] || continue
            # A busy machine may be slow once; what hangs does so each time.
            for _ in 1 2 3; do
                try "$name" "$kind" $begun || continue 2
                [ $rc -eq 124 ] || [ $rc -eq 137 ] || break
            done
            tried=$((tried + 1))
            lines=$(grep -vc '^\[' seen)
            why=""
            case $rc in 0) ;; 1 | 2) [ "$lines" -eq 1 ] ||
                why="$lines lines" ;; *) why="exit code $rc" ;; esac
            # A whole run directory elsewhere, named by a link, is the run's directory.
            if [ "$name" != . ] || [ "$kind" != tofolder ]; then
                [ "$(state_of_outside)" = "$before" ] || why="$why, something outside changed"
            fi
            [ -z "$why" ] && continue
            bad=$((bad + 1))
            echo "not ok $kind as $name (begun before: $begun): $why: $(grep -v '^\[' seen | head -n 2)"
            failed=1
        done
    done
done
verdict "$tried hostile run directories" $((bad > 0)) "$bad of them"
exit $failed
