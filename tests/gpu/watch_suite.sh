#!/bin/bash
# What watching costs a run on a GPU: the sampler (10 pairs of runs), a trace, junk on its page. Then
# TensorBoard's own reader, and brim check.
#   watch_suite.sh BRIM [pairs trace junk events check]
brim=$(realpath "$1")
shift
parts=${*:-pairs trace junk events check}
here=$(cd "$(dirname "$0")" && pwd)
recipe=${RECIPE:-$here/../../recipes/gpt2-124m.yaml}
out=${OUT:-$(mktemp -d)}
export BRIM_RUNS=$out/runs
mkdir -p "$BRIM_RUNS"
# Steps of some milliseconds: a run has hundreds of them in a second or two.
small=${SMALL:-"data.kind=random opt.tune=false step_tokens=32768 model.layers=4 model.width=384
       model.heads=6 model.vocab=8192 checkpoint.every=0 checkpoint.best=false watch.report=false"}
steps=${STEPS:-200}

# The median step of lines [a, b) of a run, in ms; with "mean" their mean, which a pause now and then raises.
cat >"$out/median.py" <<'P'
import json, statistics, sys
name, a, b = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
t = {}
for line in open(name):
    d = json.loads(line)
    if "loss" in d: t[d["step"]] = d["time_s"]
d = [t[s] - t[s - 1] for s in sorted(t) if s - 1 in t and a <= s < b]
print(1e3 * (statistics.mean if sys.argv[4:] == ["mean"] else statistics.median)(d))
P
median() { python3 "$out/median.py" "$BRIM_RUNS/$1/metrics.jsonl" "${@:2}"; }

pairs() {
    local on=() off=()
    local begin=$SECONDS
    for i in $(seq "${PAIRS:-10}"); do
        [ $((SECONDS - begin)) -lt "${PAIRS_SECONDS:-600}" ] || break
        order="true false" # who goes first changes: the card gets warmer
        [ $((i % 2)) -eq 0 ] && order="false true"
        for kind in $order; do
            "$brim" train "$recipe" $small run=p-$i-$kind steps=$steps watch.sample=$kind >"$out/log" 2>&1 ||
                { echo "not ok sampler: $(tail -n 1 "$out/log")"; return; }
            rm -rf "$BRIM_RUNS"/p-$i-$kind/checkpoints
        done
        on+=("$(median p-$i-true 50 "$steps" mean)"); off+=("$(median p-$i-false 50 "$steps" mean)")
    done
    python3 - "$BRIM_RUNS" "${on[*]}" "${off[*]}" <<'P'
import glob, json, statistics, sys
on, off = [[float(x) for x in s.split()] for s in sys.argv[2:]]
ratio = [a / b - 1 for a, b in zip(on, off)]
all = [json.load(open(n)) for n in glob.glob(sys.argv[1] + "/p-*-true/watch.json")]
w, each = all[0], [(x["sampler_cpu_s"] - x["sampler_open_s"]) / x["sampler_s"] for x in all]
share, mean = statistics.mean(each), statistics.mean(ratio)
print(f"  sampler: {statistics.mean(on):.3f} ms with, {statistics.mean(off):.3f} without, mean of {len(on)} "
      f"pairs {100*mean:+.2f} % (each {' '.join(f'{100*r:+.2f}' for r in ratio)})")
print(f"  its thread {100*share:.2f} % of a core ({100*min(each):.2f} to {100*max(each):.2f}), "
      f"opening the driver {1e3*w['sampler_open_s']:.0f} ms once; activity {w.get('activity')}")
print("ok sampler costs nothing" if abs(mean) < 0.005 else "not ok sampler costs nothing")
print(("ok" if share < 0.01 else "not ok") + " sampler's thread below 1 % of a core")
P
}

trace() {
    # The clock settles for a second or two: runs without a trace say by how much. Where a trace begins the
    # device rests, and its clock is higher for a while: a long warm-up lets it settle again. Two equal runs
    # differ by half a per cent, so pairs are averaged.
    local i a b c d costs=()
    for i in $(seq "${TRACE_PAIRS:-4}"); do
        rm -rf "$BRIM_RUNS/plain" "$BRIM_RUNS/traced"
        "$brim" train "$recipe" $small run=plain steps=300 >"$out/log" 2>&1
        "$brim" train "$recipe" $small run=traced steps=300 trace=3 trace_skip=100 \
            trace_warmup=40 >"$out/log" 2>&1
        a=$(median traced 50 100) b=$(median traced 160 301) c=$(median plain 50 100)
        d=$(median plain 160 301)
        echo "  step before a trace $a ms, after $b; the same steps without a trace $c and $d"
        costs+=("$(python3 -c "print($b / $a / ($d / $c) - 1)")")
    done
    "$brim" trace summarize traced >"$out/trace.txt"
    "$brim" trace summarize traced --json >"$out/trace.sum"
    step=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["step_ms"])' "$out/trace.sum")
    tail -n 1 "$out/trace.txt" | sed 's/^/  /'
    python3 - "${costs[*]}" "$step" "$a" <<'P'
import statistics, sys
costs, step, before = [float(x) for x in sys.argv[1].split()], float(sys.argv[2]), float(sys.argv[3])
cost = statistics.mean(costs)
print(f"  {100*cost:+.2f} % by the trace, each {' '.join(f'{100*c:+.2f}' for c in costs)}")
print(f"  traced {step:.3f} ms ({100*(step/before-1):+.2f} %)")
print(("ok" if abs(cost) < 0.005 else "not ok") + " a trace costs nothing after it")
print(("ok" if abs(step / before - 1) < 0.02 else "not ok") +
      " a traced step takes what a step takes, within 2 %")
P
    python3 - "$BRIM_RUNS/traced/trace.json" <<'P'
import json, sys
ev = json.load(open(sys.argv[1]))["traceEvents"]
bad = [e for e in ev if not all(k in e for k in ("ph", "ts", "dur", "pid", "tid", "name"))]
k = [e for e in ev if e["ph"] == "X" and e["tid"] == 1]
named = [e for e in k if "op" in e["args"]]
steps = [e for e in ev if e.get("cat") == "step"]
at = sorted((e["ts"], e["ts"] + e["dur"]) for e in k)
gaps = sum(max(0, b[0] - a[1]) for a, b in zip(at, at[1:]))
total = sum(e["dur"] for e in k) + gaps + at[0][0]
print(f"  {len(ev)} events, {len(k)} kernels, {len(named)} with an op; kernels and gaps {total/1e3:.3f} ms, "
      f"steps {sum(e['dur'] for e in steps)/1e3:.3f} ms")
over = [b for a, b in zip(at, at[1:]) if b[0] < a[1] - 1e-6]
print(f"  {sum('overlap_us' in e['args'] for e in k)} kernels began before the one before had ended; "
      f"{len(over)} events overlap")
ok = not bad and not over and len(named) == len(k) and abs(total / sum(e["dur"] for e in steps) - 1) < 0.02
print(("ok" if ok else "not ok") + " every event is whole, every kernel has its op, they sum up to the steps")
P
}

junk() {
    "$brim" train "$recipe" $small run=junk steps=100000 watch.web=true watch.port=0 >"$out/junk.log" 2>&1 &
    local pid=$!
    for _ in $(seq 100); do
        port=$(sed -n 's/.*the page is at http:..127.0.0.1:\([0-9]*\).*/\1/p' "$out/junk.log")
        [ -n "$port" ] && [ -s "$BRIM_RUNS/junk/metrics.jsonl" ] && break
        sleep 0.1
    done
    sleep "${QUIET:-4}"
    from=$(wc -l <"$BRIM_RUNS/junk/metrics.jsonl") rss=$(awk '/VmRSS/ {print $2}' /proc/$pid/status)
    python3 "$here/http_junk.py" 127.0.0.1 "$port" "${JUNK:-6}" >"$out/junk.txt"
    rc=$?
    to=$(wc -l <"$BRIM_RUNS/junk/metrics.jsonl") after=$(awk '/VmRSS/ {print $2}' /proc/$pid/status)
    sleep "${QUIET:-4}"
    end=$(wc -l <"$BRIM_RUNS/junk/metrics.jsonl")
    kill $pid
    wait $pid
    sed 's/^/  /' "$out/junk.txt"
    a=$(median junk $((from / 3)) "$from" mean) b=$(median junk "$from" "$to" mean)
    c=$(median junk $((to + 10)) "$end" mean)
    python3 -c "
a, b, c = $a, $b, $c
cost = b / ((a + c) / 2) - 1
print(f'  quiet {a:.3f} and {c:.3f} ms a step, in the junk {b:.3f} ms ({100*cost:+.2f} %)')
print('  resident $rss -> $after KiB')
print(('ok' if abs(cost) < 0.01 and $rc == 0 else 'not ok') + ' junk on the page leaves the run alone')
print(('ok' if $after - $rss < 65536 else 'not ok') + ' memory stays bounded')"
}

events() {
    "$brim" train "$recipe" $small run=events steps=40 eval.every=20 watch.tensorboard=true >"$out/log" 2>&1
    "$brim" train "$recipe" $small run=events steps=60 eval.every=20 watch.tensorboard=true >"$out/log" 2>&1
    python3 - "$BRIM_RUNS/events" <<'P'
import json, sys
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("skip: the package tensorboard is not here")
    sys.exit()
e = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
e.Reload()
s = e.Scalars("train/loss")
want = {}
for line in open(sys.argv[1] + "/metrics.jsonl"):
    d = json.loads(line)
    if "loss" in d: want[d["step"]] = d["loss"]
worst = max(abs(x.value - want[x.step]) for x in s)
print(f"  {len(e.Tags()['scalars'])} scalars, {len(s)} steps of train/loss, off by {worst:.1e} at most")
ok = [x.step for x in s] == list(range(1, 61)) and worst < 1e-5
print(("ok" if ok else "not ok") + " TensorBoard's own reader has every step once")
P
}

check() {
    local begin=$(date +%s.%N)
    timeout 60 "$brim" check >"$out/check.txt" 2>&1
    rc=$?
    sed 's/^/  /' "$out/check.txt"
    python3 -c "
import time
took = time.time() - $begin
print(f'  {took:.1f} s, exit code $rc')
print(('ok' if took < 60 and $rc == 0 else 'not ok') + ' brim check in under 60 s')"
}

for p in $parts; do
    begin=$(date +%s)
    $p
    echo "  ($p took $(($(date +%s) - begin)) s)"
done
