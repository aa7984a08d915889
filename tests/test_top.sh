#!/usr/bin/env bash
# brim top in a real terminal: tmux at 80x24 and 200x50, keys, without colour, in a C locale.
. "$(dirname "$0")/shell_lib.sh"
command -v tmux >/dev/null || { echo "skip: tmux is not installed"; exit 0; }
"$brim" top </dev/null 2>&1 | grep -q 'built without' &&
    { echo "skip: this build has no terminal view (libncurses-dev is missing)"; exit 0; }

for name in alpha beta; do
    mkdir -p runs/$name
    awk -v seed=$name 'BEGIN { for (i = 1; i <= 300; i++) {
        printf "{\"step\": %d, \"loss\": %.4f, \"per_s\": %d, \"mfu\": 0.52, ", i, 2 + 8 / i, 1250000 + i
        printf "\"tensor_active\": 0.71, \"sm_active\": 0.95, \"power_w\": %d, ", 640 + i % 7
        printf "\"gpu_mem_bytes\": 1.2e11, \"time_s\": %d, \"data_wait_s\": %g, ", i, i / 100
        printf "\"clock_reasons\": \"power cap\"}\n" } }' >runs/$name/metrics.jsonl
    printf '{"unit": "token", "steps": 500, "device": "NVIDIA H200", "activity": "gpm"}' \
        >runs/$name/watch.json
done
fake=
if ${CC:-gcc} -shared -fPIC -o "$dir/nvml.so" "$here/tests/fake_nvml.c" 2>/dev/null; then
    fake="$dir/nvml.so"
fi

tm() { tmux -L "brim-$$" -f /dev/null "$@"; }
start() { # columns, rows, then environment
    local x=$1 y=$2
    shift 2
    tm new-session -d -s t -x "$x" -y "$y" "env BRIM_NVML=$fake $* '$brim' top; echo ENDED \$?; sleep 100"
    for _ in $(seq 100); do
        tm capture-pane -pt t >screen 2>/dev/null
        grep -q 'q quit' screen && break
        sleep 0.1
    done
}
press() { # keys, then what must appear
    tm send-keys -t t "$1"
    for _ in $(seq 50); do tm capture-pane -pt t >screen; grep -q "$2" screen && return 0; sleep 0.1; done
    return 1
}
end() { tm kill-session -t t 2>/dev/null; }
tm new-session -d -s keep 'sleep 300' # a server that lasts
trap 'tm kill-server 2>/dev/null; rm -rf "$dir"' EXIT

for size in 80x24 200x50; do
    start ${size%x*} ${size#*x} LC_ALL=C.UTF-8
    [ "$(wc -l <screen)" -eq "${size#*x}" ] && grep -q '^brim top .*2 runs, 0 training' screen &&
        grep -q 'alpha *stopped *300/500' screen &&
        grep -q '^loss  *[▁▂▃▄▅▆▇█]' screen && grep -q '^tensor .*71.0%' screen &&
        grep -q '^power .* W$' screen
    verdict "overview at $size" $? "$(cat screen)"
    if [ -n "$fake" ]; then
        grep -q '^gpu1 .*tensor  71%.*/700 W' screen
        verdict "GPUs at $size" $? "$(head -n 4 screen)"
    fi
    [ "$(LC_ALL=C.UTF-8 wc -L <screen)" -le "${size%x*}" ]
    verdict "nothing wider than the screen at $size" $? "$(cat screen)"
    first=$(sed -n 's/^▸ \([a-z]*\) .*/\1/p' screen); other=$([ "$first" = alpha ] && echo beta || echo alpha)
    press Down "^▸ $other"
    verdict "the arrow moves to another run at $size" $? "$(cat screen)"
    press 2 "$other: NVIDIA H200" && grep -q 'where the time goes' screen && grep -q '^other kernels ' screen
    verdict "one run at $size" $? "$(cat screen)"
    # "slow storage, too few loader threads, costly samples": as many of the three as fit
    grep -qE '^waiting for data .*%  slow storage(, too few loader threads, costly samples)?$' screen
    verdict "no note is cut in a word at $size" $? "$(grep '^waiting' screen)"
    press 3 'pid 4242\|no GPU: '
    verdict "GPUs and other programs at $size" $? "$(cat screen)"
    press h 'Tensor activity is what counts: cycles in which tensor cores work.$'
    verdict "help at $size" $? "$(cat screen)"
    press q 'ENDED 0'
    verdict "q ends it at $size" $? "$(cat screen)"
    end
done

start 80 24 LC_ALL=C.UTF-8
tm resize-window -t t -x 60 -y 15 2>/dev/null &&
    for _ in $(seq 50); do
        tm capture-pane -pt t >screen
        [ "$(wc -l <screen)" -eq 15 ] && grep -q 'arrows run' screen && break
        sleep 0.1
    done
grep -q 'arrows run' screen && grep -q '^brim top' screen
verdict "a smaller window is drawn anew" $? "$(cat screen)"
printf '{"step": 301, "loss": 77.5, "per_s": 1, "time_s": 301, "data_wait_s": 0}\n' >>runs/alpha/metrics.jsonl
for _ in $(seq 50); do tm capture-pane -pt t >screen; grep -q '301/500 *77.5' screen && break; sleep 0.1; done
grep -q '301/500 *77.5' screen
verdict "new lines appear" $? "$(cat screen)"
end

start 80 24 LC_ALL=C NO_COLOR=1
grep -q '^loss .*[-_.~=+*#]' screen && tm capture-pane -ept t >screen &&
    ! LC_ALL=C grep -q $'[\x80-\xff]' screen && ! grep -q $'\x1b\[3[0-7]m' screen
verdict "a C locale and NO_COLOR: ASCII, no colour" $? "$(cat screen)"
end
start 80 24 LC_ALL=C.UTF-8 TERM=vt100
grep -q '^brim top' screen
verdict "a terminal without colours" $? "$(cat screen)"
end
exit $failed
