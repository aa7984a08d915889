#!/usr/bin/env bash
# Inputs that somebody else made: names with escapes, damaged sets, weights that are not finite, environments
# that lie, and a disk that fills up. No byte of them reaches the terminal raw; nothing half-written stays.
. "$(dirname "$0")/shell_lib.sh"
export BRIM_RUNS=$dir/runs
raw() { LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]' said; } # a control character but tab and line break

command -v python3 >/dev/null || { echo "skip: no python3 to draw images with"; exit 0; }
python3 - <<'E'
import os, struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
def png(n):
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", n, n, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress((b"\0" + bytes(i % 256 for i in range(n))) * n)) +
            chunk(b"IEND", b""))
names = ["plain", "\x1b[31mred", "two\nlines", "a, b", "[x]", "#1", "key: value", "'q", "x" * 100, "-",
         "\xe9t\xe9"]
for name in names:
    os.makedirs("set/" + name)
    open(f"set/{name}/\x1b]0;title\x07\n.png", "wb").write(png(8))
    open(f"set/{name}/bad\x1b[2J.png", "wb").write(b"junk")
os.makedirs("large/a")
for i in range(12): open(f"large/a/{i}.png", "wb").write(png(256))
os.makedirs("empty/a"); os.makedirs("empty/b")
for i in range(200): open(f"empty/{'ab'[i % 2]}/{i}.png", "wb").close()
E
cat >see.yaml <<E
task: image
steps: 2
step_samples: 22
device: cpu
threads: 1
image: {size: 8, patch: 4}
model: {layers: 1, width: 16, heads: 2}
data: {skip_limit: 1}
eval: {every: 0}
E

# ---- names -------------------------------------------------------------------------------------------------

brim train see.yaml run=names data.train=set
[ $rc -eq 0 ] && ! raw && says 'warning: set/.*bad\?\[2J.png: skipped: '
verdict "names with escapes and line breaks are shown without them" $? "$(seen)"
[ "$(wc -l <runs/names/classes.txt)" -eq 11 ] && grep -qx 'two\\nlines' runs/names/classes.txt &&
    grep -qx "'q" runs/names/classes.txt
verdict "a run keeps every name of a class" $? "$(cat -v runs/names/classes.txt)"
brim predict names set --show 30
[ $rc -eq 0 ] && ! raw && says '^set/plain/\?\]0;title\?\?.png is plain: ' &&
    says '^11 labelled samples' # one a line: no name breaks one
verdict "and the run can be used" $? "$(seen)"
brim train names steps=3; [ $rc -eq 0 ]; verdict "and gone on with" $? "$(seen)"
brim data show set --out sheet.png; [ $rc -eq 0 ] && ! raw && [ "$(grep -vc '^\[' said)" -eq 24 ]
verdict "a contact sheet's list has a line for each" $? "$(seen)"
brim data images set --out albums
[ $rc -eq 0 ] && ! raw; verdict "albums" $? "$(seen)"
for target in $'no\x1b[31m.yaml' $'no\nsuch'; do
    for command in train sample import play "data show" "env check"; do
        brim $command "$target" --out x.gif
        [ $rc -eq 2 ] && ! raw && [ "$(wc -l <said)" -eq 1 ]
        verdict "$command of a name with control characters" $? "$(seen)"
    done
done

# ---- damage ------------------------------------------------------------------------------------------------

sed 's/data: .*/data: {train: empty}/; s/steps: 2/steps: 50/' see.yaml >empty.yaml
brim train empty.yaml
[ $rc -eq 1 ] &&
    says '^brim: data.train: empty: none of the first [0-9]+ (training|validation) samples could be used$'
verdict "a set of which nothing can be read ends the run" $? "$(seen)"
tar xf "$here/tests/golden/hf.tar.xz" llama
python3 - <<'E'
import struct
b = open("llama/model.safetensors", "rb").read(); n = 8 + struct.unpack("<Q", b[:8])[0]
open("llama/model.safetensors", "wb").write(b[:n] + b"\xc0\x7f" * ((len(b) - n) // 2))
E
brim import llama run=nan
[ $rc -eq 2 ] && says '^[a-z.]+ has numbers that are not finite$' && [ ! -e runs/nan ]
verdict "weights that are not finite make no run" $? "$(seen) $(ls runs/nan 2>&1)"
rm -rf llama; tar xf "$here/tests/golden/hf.tar.xz" llama

# ---- environments ------------------------------------------------------------------------------------------

brim env new base
lie() { # name, what sed makes of the template, pattern
    sed "$2" base.c >"$1.c"
    cc -O1 -w -shared -fPIC -o "$1.so" "$1.c" || { verdict "$1 is compiled" 1; return; }
    brim env check "./$1.so" --seconds 0.1
    [ $rc -ne 0 ] && ! raw && says "$3"; verdict "an environment with $1" $? "$(seen)"
}
if command -v cc >/dev/null; then
    lie an-observation-of-size-0 's/{ CELLS }, 0, 1/{ 0 }, 0, 1/' '^.*: block position: dimension 0 is 0$'
    [ $rc -eq 2 ]; verdict "which is wrong input" $? "$(seen)"
    lie no-description 's/return &game_info/return 0/' ': info\(\) gives nothing$'
    lie a-second-agent-that-it-forgets 's/\.max_steps   = 100,/.max_steps = 100, .n_agent = 2,/' \
        '^not ok writes: it never writes its row of position for agent 2$'
    lie another-answer 's/return there ? ENV_TERMINATED : ENV_GOES_ON/return 77/' \
        'step gives something else than ENV_GOES_ON, ENV_TERMINATED or ENV_TRUNCATED'
    lie a-large-answer 's/return there ? ENV_TERMINATED : ENV_GOES_ON/return 1 << 20/' \
        'step gives something else'
    lie an-infinite-reward 's/\*io->reward = .*;/*io->reward = 1.0f \/ 0.0f;/' 'the reward is inf'
else
    echo "skip: no C compiler for environments"
fi

# ---- a full disk -------------------------------------------------------------------------------------------

head -c 20000 "$here/recipes/data/tinyshakespeare.txt" >text.txt
cat >tiny.yaml <<E
steps: 1
step_tokens: 64
device: cpu
threads: 1
model: {layers: 1, width: 64, heads: 2, vocab: 256, context: 16}
data: {kind: text, train: text.txt}
eval: {every: 0, sequences: 4}
E
brim train tiny.yaml run=tiny
mkdir small
if mount -t tmpfs -o size=400k none small 2>/dev/null; then
    trap 'umount -l "$dir/small"; rm -rf "$dir"' EXIT
    head -c 300000 /dev/zero >small/fill
    # name, the file that the message names, then the command: afterwards the disk holds what it held before.
    full() {
        local name=$1 file=$2
        shift 2
        head -c "${more:-100000}" /dev/zero >small/more
        find small -type f | sort >before
        brim "$@"
        [ $rc -eq 1 ] && says "^brim: [^ ]*$file[^ ]*: .*No space left on device" &&
            find small -type f | sort | cmp -s - before
        verdict "a full disk: $name" $? "$(seen) $(find small -type f | xargs)"
        rm small/more
    }
    full "export" small/out/ export tiny small/out
    [ ! -e small/out ]; verdict "and no folder of it" $? "$(ls -A small/out 2>&1)"
    more=50000 full "export in several files" small/out/ export tiny small/out --shard 40K
    full "a tokenizer" small/tok/tokenizer.json data tokenizer train text.txt --vocab 600 --out small/tok
    full "a contact sheet" small/s.png data show set --out small/s.png
    full "an animation" small/p.gif env show cartpole --out small/p.gif
    BRIM_RUNS=small full "import" small/q/ import llama run=q
    [ ! -e small/q ]; verdict "and no run of it" $? "$(ls -A small/q 2>&1)"
    umount small; mount -t tmpfs -o size=1300k none small
    more=1 full "the second album of some" small/al/ data images large --out small/al --raw --album 1
    # An export over an older one that fails leaves the older one.
    brim export tiny small/out --shard 40K; md5sum small/out/* >before
    head -c 2000000 /dev/zero >small/fill 2>/dev/null
    brim export tiny small/out --shard 40K
    [ $rc -eq 1 ] && md5sum small/out/* | cmp -s - before && [ -z "$(find small/out -name '.tmp*')" ]
    verdict "an export that fails leaves the one before" $? "$(seen) $(ls -A small/out | xargs)"
    rm small/fill; brim export tiny small/out --shard 40K
    [ $rc -eq 0 ] && md5sum small/out/* | cmp -s - before
    verdict "and one with room is the same" $? "$(seen)"
    umount small; trap 'rm -rf "$dir"' EXIT
else
    echo "skip: no right to mount a tmpfs, so a small disk was not tried"
fi
brim export tiny text.txt; [ $rc -eq 2 ] && says '^text.txt: is not a folder'
verdict "an export into a file is refused" $? "$(seen)"
exit $failed
