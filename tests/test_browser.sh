#!/usr/bin/env bash
# The web page of a live run in a real Chromium, at desktop and phone width. Pictures are kept in
# $1/page-test. BRIM_BROWSER_ALL=1 also tries the page's own plotter.
. "$(dirname "$0")/shell_lib.sh"
chromium=$(command -v chromium || command -v chromium-browser || true)
[ -n "$chromium" ] || { echo "skip: chromium is not installed"; exit 0; }
command -v node >/dev/null && command -v npm >/dev/null ||
    { echo "skip: node and npm are not installed"; exit 0; }
"$brim" top --web --port 0 --bind 0.0.0.0 2>&1 | grep -q 'built without' &&
    { echo "skip: this build has no web page (libmicrohttpd-dev is missing)"; exit 0; }
tools=$build/page-test
mkdir -p "$tools"
if [ ! -d "$tools/package" ]; then
    (cd "$tools" && timeout 60 npm pack --silent playwright-core@1.56 >/dev/null 2>&1 &&
        tar xzf playwright-core-*.tgz) ||
        { rm -rf "$tools/package"; echo "skip: npm could not fetch playwright-core"; exit 0; }
fi

viewer=$tools/speedscope/package/dist/release # reads Chrome's format, and says what is wrong with it
if [ ! -d "$viewer" ]; then
    mkdir -p "$tools/speedscope"
    (cd "$tools/speedscope" && timeout 60 npm pack --silent speedscope@1.25 >/dev/null 2>&1 &&
        tar xzf speedscope-*.tgz) || { viewer=; echo "skip: npm could not fetch speedscope"; }
fi

for name in one two; do
    mkdir -p runs/$name
    awk -v k=$([ $name = one ] && echo 8 || echo 5) 'BEGIN { srand(k); for (i = 1; i <= 400; i++) {
        printf "{\"step\": %d, \"loss\": %.4f, \"lr\": 0.001, ", i, 1.5 + k / (1 + i / 20) + 0.2 * rand()
        printf "\"grad_norm\": %.3f, \"per_s\": %d, ", 1 + rand(), 5000 * k + 100 * rand()
        printf "\"time_s\": %.1f, \"data_wait_s\": %g, ", i * k / 10, i / 200
        printf "\"own_cpu\": %.2f, \"rss_bytes\": 2e8}\n", 1.9 + rand() / 10
        if (i % 100 == 0)
            printf "{\"step\": %d, \"val_loss\": %.4f, \"time_s\": %.1f}\n",
                i, 1.6 + k / (1 + i / 20), i * k / 10
        } }' >runs/$name/metrics.jsonl
    printf '{"unit": "token", "steps": 400, "device": "CPU", "activity": "none: no GPU"}' \
        >runs/$name/watch.json
    printf '{"step": 400, "prompt": "ROMEO:", "text": " <b>once</b> upon a time"}\n' >runs/$name/samples.jsonl
done
cp -r runs/one 'runs/a,b'
# A task that is no language model: images, accuracy (larger is better), two losses, a picture as a sample.
mkdir -p runs/seen/samples
awk 'BEGIN { for (i = 1; i <= 200; i++) {
    printf "{\"step\": %d, \"loss\": %.4f, ", i, 2 / i
    printf "\"distance\": %.3f, \"repel\": %.3f, ", 1 / i, -1 / i
    printf "\"per_s\": 900, \"time_s\": %d, \"data_wait_s\": 0}\n", i
    if (i % 50 == 0)
        printf "{\"step\": %d, \"val_accuracy\": %.3f, \"val_top5\": 0.9, \"time_s\": %d}\n",
            i, i / 250, i } }' \
    >runs/seen/metrics.jsonl
printf '{"unit": "image", "units": "images", "steps": 400, "device": "CPU", "best": 0, "metrics": %s}' \
    '[{"name": "val_accuracy", "larger": true}, {"name": "val_top5", "larger": true}]' >runs/seen/watch.json
printf '%s' iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg== |
    base64 -d >runs/seen/samples/00000200-0.png
printf '{"step": 200, "text": "a cat", "picture": "samples/00000200-0.png"}\n' >runs/seen/samples.jsonl

cat >tiny.yaml <<'END'
step_tokens: 2048
steps: 1000000
model: {layers: 2, width: 64, heads: 2, vocab: 256, context: 64}
eval: {every: 20, sequences: 16}
watch: {samples: 1}
trace: 2
END
for i in $(seq 200); do printf 'The quick brown fox jumps over the lazy dog %d times. ' "$i"; done >text.txt
"$brim" train tiny.yaml data.kind=text data.train=text.txt device=cpu threads=1 run=live watch.web=true \
    watch.port=0 >out 2>&1 &
pid=$!
for _ in $(seq 200); do
    url=$(sed -n 's/.*the page is at \(http[^ ]*\)$/\1/p' out 2>/dev/null)
    [ -n "$url" ] && [ -s runs/live/metrics.jsonl ] && break
    sleep 0.1
done
: "${url:?}"
timeout 120 node "$here/tests/browser.cjs" "$tools/package" "$chromium" "$url" "$tools" \
    "$PWD/runs/live/trace.json" $viewer
rc=$?
kill $pid; wait $pid
exit $rc
