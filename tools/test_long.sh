#!/usr/bin/env bash
# What `make test` does in small numbers, in large ones: 200 kills and signals, a fault at every call, full
# disks, 20 MB of text through every tokenizer, 10,000 damaged images, a minute of fuzzing a reader.
# The faults also run in a build with AddressSanitizer ($2), where a leak counts as a failure.
set -uo pipefail
build=${1:-build}; asan=${2:-$build-asan}
failed=0
part() { # name, then the command
    local name=$1 s=$SECONDS
    shift
    "$@" | sed "s/^/$name: /" || failed=1
    echo "$name: $((SECONDS - s)) s"
}
part kills env DURABLE_LONG=1 KILLS="${KILLS:-200}" bash tests/test_durable.sh "$build"
part bits bash tests/long_bits.sh
part ops env OPS_LONG=1 "$build/tests/test_op_cpu"
part ops-emulated env OPS_LONG=1 "$build/tests/test_plain_kernels"
part disk bash tests/test_disk.sh "$build"
part faults env FAULTS_BY=1 bash tests/test_faults.sh "$build"
part faults-asan env FAULTS_BY=1 bash tests/test_faults.sh "$asan"
part kills-asan env DURABLE_LONG=1 bash tests/test_durable.sh "$asan"
part hostile env HOSTILE_BY=1 HANG_S=2 bash tests/test_hostile.sh "$build"
part tokenizer env TOKENIZER_LONG=1 bash tests/test_tokenizer.sh "$build"
part parquet env PARQUET_LONG=1 bash tests/test_parquet.sh "$build"
part images env DAMAGED="${DAMAGED:-10000}" bash tests/test_images.sh "$build"
part images-asan env DAMAGED="${DAMAGED:-10000}" bash tests/test_images.sh "$asan"
part accuracy env ACCURACY_LONG=1 bash tests/test_accuracy.sh "$build"
part stages env STAGES_LONG=1 bash tests/test_stages.sh "$build"
part ppo env PPO_LONG=1 bash tests/test_ppo.sh "$build"
part latent env LATENT_LONG=1 bash tests/test_latent.sh "$build"
part browser env BRIM_BROWSER_ALL=1 bash tests/test_browser.sh "$build"
part fuzz env FUZZ_S="${FUZZ_S:-60}" bash tests/test_fuzz.sh "$build"
[ $failed -eq 0 ] && echo "test-long: passed" || echo "test-long: FAILED"
exit $failed
