#!/usr/bin/env bash
# Four models of 100 steps on the CPU give the bits that are written down here. Part of make test-long:
# the hashes hold for ARCH=x86-64-v3, so Brim is built anew. tools/same_bits.sh compares two commits.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
out=$(tools/same_bits.sh HEAD 100 2>&1) || { echo "not ok two builds of one commit: $out"; exit 1; }
rc=0
while read -r name file hash; do
    if grep -q "^ok $name $file $hash\$" <<<"$out"; then
        echo "ok $name $file"
    else
        echo "not ok $name $file: $(grep "^ok $name $file" <<<"$out"), not $hash"; rc=1
    fi
done <<END
quickstart model 974af7688a3e58be
quickstart optim 25f6c84dc073265a
llama model a56e325a88110a6d
llama optim d87f6b2be4361d76
qwen3 model 53cbc496a27f7685
qwen3 optim 6793574a1ec908e6
documents model 468d24b340679b2f
documents optim df9b71c9c95a8082
END
exit $rc
