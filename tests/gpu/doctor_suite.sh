#!/bin/bash
# The doctor on a GPU: seven crippled runs and two healthy ones. For each crippled one: the cause it names
# first, the step it predicts, and the step that the changed recipe then takes.
#   doctor_suite.sh BRIM [CASE ...]     cases: loader batch fp32 attention shared recompute affinity
#                                              healthy1 healthy2 (default: all)
# Prints "ok NAME" or "not ok NAME"; figures in between. OUT names a folder for what was said.
brim=$(realpath "$1")
shift
cases=${*:-loader batch fp32 attention shared recompute affinity healthy1 healthy2}
here=$(cd "$(dirname "$0")" && pwd)
recipe=${RECIPE:-$here/../../recipes/gpt2-124m.yaml}
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
export BRIM_RUNS=$out/runs
mkdir -p "$BRIM_RUNS"
seconds=${SECONDS_EACH:-2}

# Algorithms are not timed: that takes longer than a look, for each new shape.
quick="data.kind=random opt.tune=false"
base="$quick step_tokens=131072"

# look NAME TARGET KEYS...: the doctor's JSON in $out/NAME.json
look() {
    local name=$1 target=$2
    shift 2
    rm -f "$out/$name.yaml" # of an earlier suite: the doctor need not write one
    timeout ${LOOK_TIMEOUT:-60} $PREFIX "$brim" doctor "$target" "$@" --seconds "$seconds" --json \
        --apply --out "$out/$name.yaml" >"$out/$name.json" 2>"$out/$name.log" && return 0
    tail -n 3 "$out/$name.log"
    return 1
}

# judge NAME CAUSE: $out/NAME.json, compared with $out/NAME-fixed.json unless the cause is "healthy"
judge() {
    python3 - "$out" "$1" "$2" <<'P'
import json, sys
out, name, cause = sys.argv[1:]
a = json.load(open(f"{out}/{name}.json"))
try:
    b = json.load(open(f"{out}/{name}-fixed.json"))
except Exception:
    b = None
f = a["findings"][0] if a["findings"] else {}
total = 100 * sum(p["share"] for p in a["waterfall"])
act, ex = a["tensor_active"], a["tensor_executed"]
fails = []
if a["verdict"] != cause: fails.append(f"says {a['verdict']!r}")
if abs(total - 100) > 1: fails.append(f"waterfall {total:.1f} %")
# Only where products run on tensor cores: fp32 ones do not. A card that is shared counts for all programs.
comparable = act is not None and ex is not None and cause not in ("precision", "another process")
if comparable and abs(act - ex) > 0.12:
    fails.append(f"tensor {100*ex:.1f} by FLOPs, {100*act:.1f} by counters")
line = f"  {name}: {a['step_ms']:.1f} ms, verdict {a['verdict']}, predicted {f.get('step_ms') or 0:.1f}"
if cause == "healthy":
    pass
elif b:
    err = f["step_ms"] / b["step_ms"] - 1 if f.get("step_ms") else 9
    line += f", fixed {b['step_ms']:.1f} ms (prediction {100*err:+.0f} %), then {b['verdict']}"
    if abs(err) > 0.25: fails.append(f"prediction {100*err:+.0f} %")
    if b["step_ms"] > 0.95 * a["step_ms"]: fails.append("nothing gained")
else:
    fails.append("the changed recipe did not run")
print(line)
print("    " + ", ".join(f"{p['name']} {100*p['share']:.1f}" for p in a["waterfall"]))
print(f"    tensor {100*(ex or 0):.1f} executed, {100*(act or 0):.1f} counted; {a['source']}")
print(("ok " if not fails else "not ok ") + "doctor " + name + ("" if not fails else ": " + "; ".join(fails)))
P
}

# crippled NAME CAUSE KEYS...: looks, applies, looks at the result
crippled() {
    local name=$1 cause=$2
    shift 2
    look "$name" "$recipe" $base "$@" || { echo "not ok doctor $name: it did not run"; return; }
    if [ -f "$out/$name.yaml" ]; then PREFIX=$FIXED_PREFIX look "$name-fixed" "$out/$name.yaml"; else
        PREFIX=$FIXED_PREFIX look "$name-fixed" "$recipe" $base "$@"
    fi
    judge "$name" "$cause"
}

healthy() {
    local name=$1
    shift
    look "$name" "$@" || { echo "not ok doctor $name: it did not run"; return; }
    judge "$name" healthy
}

# The first CPU that this shell may use.
first_cpu=$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/')

for c in $cases; do
    begin=$(date +%s.%N)
    PREFIX= FIXED_PREFIX=
    unset BRIM_SLOW
    case $c in
    loader) export BRIM_SLOW=sleep:4000; crippled loader data data.threads=1 ;;
    # Smaller steps: these two are slow, and one has thousands of kernels to trace.
    batch) base="$quick step_tokens=32768" crippled batch "batch too small" micro_batch=1 ;;
    fp32) base="$quick step_tokens=16384" crippled fp32 precision precision=fp32 ;;
    attention) crippled attention attention opt.flash=false ;;
    recompute) crippled recompute recomputation recompute=block ;;
    affinity)
        export BRIM_SLOW=work:4000
        PREFIX="taskset -c $first_cpu"
        crippled affinity "CPU quota" data.threads=4 ;;
    shared)
        (BRIM_RUNS=$out/other exec "$brim" train "$recipe" $base run=other steps=100000 memory_limit=20% \
            checkpoint.every=0 >"$out/other.log" 2>&1) &
        other=$!
        for _ in $(seq 100); do
            [ -s "$out/other/other/metrics.jsonl" ] && break
            sleep 0.1
        done
        look shared "$recipe" $base memory_limit=40% || echo "not ok doctor shared: it did not run"
        kill -9 $other # a child of this shell
        wait $other 2>/dev/null
        look shared-fixed "$recipe" $base memory_limit=40%
        judge shared "another process" ;;
    healthy1) healthy healthy1 "$recipe" $base ;;
    healthy2)
        healthy healthy2 "$here/../../recipes/gpt2-350m.yaml" data.kind=random opt.tune=false \
            step_tokens=65536 ;;
    esac
    echo "  ($c took $(python3 -c "import time;print(round(time.time()-$begin,1))") s)"
done
