# For shell tests, sourced first: $build, $here (the project), $brim, an empty current folder $dir, and
# verdict(). End with `exit $failed`.
set -uo pipefail
build=$(cd "${1:-build}" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
brim=$build/brim
[ -x "$brim" ] || { echo "not ok brim is built"; exit 1; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
failed=0

verdict() { # name, condition's exit code, what was seen ...
    if [ "$2" -eq 0 ]; then echo "ok $1"; else echo "not ok $1: ${*:3}"; failed=1; fi
}

# The newest value of a metric of a run, and a comparison of two numbers: is 3 '<' 4.
last() { sed -nE "s#.*\"$2\": (-?[0-9.e+-]+)[,}].*#\1#p" "runs/$1/metrics.jsonl" | tail -n 1; }
is() { awk "BEGIN { exit !(${1:-0} $2 ${3:-0}) }"; }

# Makes text.txt, of so many bytes, and tiny.yaml: a model of bytes that trains on them in a blink.
tiny_recipe() { # bytes, steps, sequences of an evaluation
    head -c "$1" "$here/recipes/data/tinyshakespeare.txt" >text.txt
    cat >tiny.yaml <<END
steps: $2
step_tokens: 128
device: cpu
threads: 1
model: {layers: 1, width: 16, heads: 2, vocab: 256, context: 16}
data: {kind: text, train: text.txt}
eval: {every: 0, sequences: $3}
END
}

# Runs brim; all that brim says goes to the file `said`, its exit code to $rc.
brim() { timeout -k 5 60 "$brim" "$@" >said 2>&1 </dev/null; rc=$?; }
says() { grep -qE -- "$1" said; }
seen() { echo "exit code $rc: $(tail -n 4 said | cat -v)"; }
