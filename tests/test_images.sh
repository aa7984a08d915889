#!/usr/bin/env bash
# Images through the program: Pillow beside the decoders and ops, damaged files, sheets, albums, clips.
# DAMAGED says how many damaged images (default 300).
. "$(dirname "$0")/shell_lib.sh"

python=
for p in python3 /usr/bin/python3; do "$p" -c 'import PIL' 2>/dev/null && { python=$p; break; }; done
pictures=/usr/share/doc/opencv-doc/examples
mnist=/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz

# Wrong input: exit code 2, and one line that matches at the end.
refuse() { # name, pattern, arguments of `brim data`
    local name=$1 pattern=$2 rc
    shift 2
    timeout -k 5 60 "$brim" data "$@" >out 2>err </dev/null; rc=$?
    # Warnings of what was skipped may stand before.
    [ $rc -eq 2 ] && [ "$(grep -cv '^\[' err)" -eq 1 ] && tail -n 1 err | grep -q "$pattern"
    verdict "$name" $? "exit code $rc: $(cat err)"
}

# ---- beside Pillow -----------------------------------------------------------------------------------------

if [ -z "$python" ]; then
    echo "skip: python3-pil is not installed: nothing to compare images with"
elif [ ! -d "$pictures" ]; then
    echo "skip: opencv-doc is not installed: no pictures to compare"
else
    peer() { "$python" "$here/tests/image_peer.py" "$build/tests/verify_images" "$@" || failed=1; }
    peer decode "$pictures" 60
    peer ops "$pictures/data/HappyFish.jpg"
    peer damaged "$pictures" "${DAMAGED:-300}"
fi

# ---- what the command line may say -------------------------------------------------------------------------

mkdir -p set/one set/two empty
refuse "data without a verb is refused" 'brim data --help lists what there is'
refuse "a slip in the verb is named" "data: imges: no such command (did you mean images?)" imges
refuse "a set that is not there is named" 'nowhere: no such file or folder' show nowhere --out a.png
refuse "a folder without images is named" 'empty: no image in it' show empty --out a.png
refuse "a slip in an augmentation is named" "fliip: no such augmentation (did you mean flip?)" \
    show empty --out a.png --augment fliip
refuse "a missing --out is named" 'command line: --out' images set
refuse "a size that is no size is named" "'7x7' is not a whole number" images set --out x --size 7x7
refuse "a sheet that is no PNG is refused" "'a.jpg': the sheet is a PNG file" show set --out a.jpg
refuse "a share with junk behind it is refused" "'0:0.8x' is not two shares" clips v --out x --part 0:0.8x
refuse "a share without an end is refused" "'0.5' is not two shares" clips v --out x --part 0.5
refuse "clips without a video are refused" 'a video is missing' clips --out x
refuse "a video that is not there is named" 'gone.mp4: no such file' clips gone.mp4 --out x

# ---- real data: idx, sheets, albums ------------------------------------------------------------------------

if [ ! -f "$mnist" ]; then
    echo "skip: dataset-fashion-mnist is not installed"
else
    "$brim" data show "$mnist" --out idx.png --size 32 --augment crop,flip,jitter,rand,erase,cutmix >list \
        2>err
    rc=$?
    [ $rc -eq 0 ] && grep -q '^idx: 10000 samples, 10 classes$' list && [ "$(grep -c '^row' list)" -eq 32 ] &&
        file_is_png=$(head -c 4 idx.png | tail -c 3) && [ "$file_is_png" = PNG ]
    verdict "a sheet of Fashion-MNIST" $? "exit code $rc: $(head -n 3 list err)"
    "$brim" data images "$mnist" --out albums --album 3 >out 2>err; rc=$?
    [ $rc -eq 0 ] && grep -q '^albums: 10000 images of 10 classes in 3 albums' out
    verdict "Fashion-MNIST becomes albums" $? "exit code $rc: $(cat out err)"
    "$brim" data show albums --out album.png --size 32 --augment crop,flip,jitter,rand,erase,cutmix >list2 \
        2>err
    rc=$?
    [ $rc -eq 0 ] && cmp -s idx.png album.png
    verdict "the same seed gives the same sheet from idx and from albums" $? "exit code $rc: $(cat err)"
    "$brim" data show albums --out other.png --size 32 --seed 1 --augment crop,flip,jitter,rand,erase,cutmix \
        >/dev/null 2>&1 && ! cmp -s album.png other.png
    verdict "another seed gives another sheet" $? "the two are equal"
    # A recipe: its own keys, its names of the classes; small images are magnified.
    printf '%s\n' 'task: image' "image: {size: 32, patch: 8, names: [a, b, c, d, e, f, g, h, i, j]}" \
        "data: {train: $mnist, augment: [flip]}" >show.yaml
    "$brim" data show show.yaml --out own.png --count 16 >list 2>err; rc=$?
    [ $rc -eq 0 ] && grep -q '^row 2 column 8: [a-j], ' list &&
        grep -q '^own.png: 16 of 10000 samples$' list && [ "$(od -An -tu1 -j18 -N2 own.png)" = "   3  18" ]
    verdict "a sheet of a recipe" $? "exit code $rc: $(tail -n 2 list err; od -An -tu1 -j16 -N8 own.png)"
    refuse "a flag beside a recipe names the key" 'size: of a recipe say image.size=64' show show.yaml --out \
        own.png --size 64
    # The recipe's names are of its own data; other data bring theirs, as in training.
    mkdir -p named/ant named/bee && cp idx.png named/ant/1.png && cp idx.png named/bee/2.png
    "$brim" data show "$here/recipes/vit-tiny.yaml" data.train=named --out named.png >list 2>err; rc=$?
    [ $rc -eq 0 ] && grep -q ': ant, ' list && grep -q ': bee, ' list
    verdict "a sheet has the names of the data on the command line" $? "exit code $rc: $(head -n 3 list err)"
    "$brim" data show albums --measure 0.3 --size 32 >out 2>err &&
        grep -q 'samples/s with .* read .* decode .* resize .* augment' out
    verdict "show measures itself" $? "$(cat out err)"
    cpu=$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/')
    taskset -c "$cpu" "$brim" data show albums --measure 0.1 --size 32 >out 2>err &&
        grep -q 'with 1 thread;' out
    verdict "with a thread a CPU that it may use" $? "$(cat out err)"
    refuse "albums are not mixed with a second conversion" 'albums: has albums already' images \
        "$mnist" --out albums
    "$brim" data verify albums >out 2>&1 && grep -q '10000 records of 10 classes, all checksums' out
    verdict "albums are verified" $? "$(cat out)"
    head -c 40000 /dev/zero | dd of=albums/part-00001.brimg bs=1 seek=1000 conv=notrunc status=none
    "$brim" data show albums --size 8 --count 1024 --out a.png >list 2>err; rc=$?
    [ $rc -eq 0 ] && grep -q 'part-00001.brimg: .*: skipped: the checksum of its record' err &&
        [ "$(grep -c 'no label' list)" -ge 4 ]
    verdict "damaged records are skipped by name" $? "exit code $rc: $(cat err)"
    "$brim" data verify albums >out 2>&1; rc=$?
    [ $rc -eq 1 ] && grep -qE 'albums: [0-9]+ of 10000 records are damaged' out &&
        grep -q 'part-00001.brimg: .*checksum' out
    verdict "damaged records are found by verify" $? "exit code $rc: $(tail -n 1 out)"
    head -c 100000 albums/part-00002.brimg >cut && mv cut albums/part-00002.brimg
    refuse "a truncated album is named" 'part-00002.brimg: truncated' show albums --out a.png
fi

# ---- a folder with everything that goes wrong --------------------------------------------------------------

if [ -d "$pictures" ]; then
    cp "$pictures"/data/{HappyFish,LinuxLogo,WindowsLogo}.jpg set/one/
    head -c 2000 "$pictures/data/HappyFish.jpg" >set/two/cut.jpg
    echo text >set/two/text.jpg
    : >set/two/empty.png
    cp "$pictures/data/aero1.jpg" set/two/
    "$brim" data images set --out mixed --size 64 >out 2>err; rc=$?
    [ $rc -eq 0 ] &&
        grep -q '^mixed: 4 images of 2 classes in 1 album.*; 3 skipped, listed in mixed/skipped.txt$' out &&
        grep -q 'two/cut.jpg: JPEG: the file ends early' mixed/skipped.txt &&
        grep -q 'two/text.jpg: neither a JPEG nor a PNG' mixed/skipped.txt &&
        grep -q 'two/empty.png: the file is empty' mixed/skipped.txt &&
        [ "$(grep -c 'warning: .*skipped' err)" -eq 3 ]
    verdict "damaged files are left out, listed and counted" $? "exit code $rc: $(cat out err)"
    "$brim" data images set --out raw --size 64 --raw >out 2>err &&
        "$brim" data show raw --eval --size 48 --out raw.png >list 2>>err &&
        grep -q '^albums: 4 samples, 2 classes' list
    verdict "raw albums" $? "$(cat out err)"
    cp mixed/part-00000.brimg set/
    refuse "albums beside class folders are refused" 'set: has albums and folders of images: move one' \
        show set --out a.png
    mv set/part-00000.brimg set.brimg
    touch s.tar.gz && refuse "a compressed tar is to be unpacked" 's.tar.gz: is compressed: unpack' \
        show s.tar.gz --out a.png
    # WebDataset: more files than may be open at first; members that are not read are counted.
    mkdir -p tars && echo 1 >a.cls
    for name in a.jpg a.mask.jpg b.webp; do cp "$pictures/data/HappyFish.jpg" $name; done
    ln -f a.jpg c.jpg; ln -f a.cls c.cls
    tar cf tars/0.tar a.jpg a.cls a.mask.jpg b.webp c.jpg
    for i in $(seq 80); do cp tars/0.tar "tars/$i.tar"; done
    (ulimit -Sn 64; "$brim" data show tars --size 8 --out tars.png >list 2>err)
    grep -q '^tar: 81 samples, 2 classes' list && grep -q 'tars: left out of tar files: 243 images' err
    verdict "81 tar files where 64 may be open; what is left out is counted" $? "$(head -n 2 list err)"
    tar cf link.tar a.jpg a.cls c.cls
    refuse "a link in place of a class number" 'link.tar: c.cls: a link (tar' show link.tar --out a.png
    mkdir -p swept/.tmp-albums-999999999 && : >swept/.tmp-albums-999999999/part-00000.brimg
    "$brim" data images set --out swept --size 16 >out 2>err && [ ! -e swept/.tmp-albums-999999999 ]
    verdict "what a killed conversion left is removed" $? "$(ls -a swept; cat err)"
    mkdir -p bad/a && echo text >bad/a/x.jpg
    refuse "a set of which nothing can be used is refused" \
        'none of the 1 files could be used' images bad --out badout
fi

# ---- clips -------------------------------------------------------------------------------------------------

video=$pictures/data/vtest.avi
if [ ! -f "$video" ]; then
    echo "skip: opencv-doc is not installed: no video"
else
    mkdir -p v/street && head -c 1500000 "$video" >v/street/vtest.avi && echo text >v/street/no.avi
    cp "$pictures/data/HappyFish.jpg" v/street/ && echo text >v/street/notes.txt
    "$brim" data clips v --frames 8 --stride 2 --size 96 --out clips >out 2>err; rc=$?
    if [ $rc -eq 1 ] && grep -q 'FFmpeg' err; then
        echo "skip: $(cat err)"
    else
        [ $rc -eq 0 ] && grep -qE '^clips: [0-9]+ clips of 1 class in 1 album.*; 3 skipped' out &&
            grep -q 'no.avi: skipped: cannot be opened as a video' err &&
            grep -q 'HappyFish.jpg: skipped: a picture or a text, not a video' err
        verdict "a video becomes clips" $? "exit code $rc: $(cat out err)"
        "$brim" data show clips --frames 4 --stride 2 --size 64 --out clips.png >list 2>err &&
            grep -q 'street, clips/part-00000.brimg: v/street/vtest.avi: frame 0$' list
        verdict "a sheet of clips names class, video and frame" $? "$(cat list err)"
        printf '%s\n' 'task: image' 'step_samples: 2' 'steps: 1' 'device: cpu' 'threads: 1' \
            'model: {layers: 1, width: 32, heads: 2}' 'image: {size: 16, patch: 8}' \
            'data: {train: clips, val_fraction: 0}' >clips.yaml
        export BRIM_RUNS=$dir/runs
        "$brim" train clips.yaml >out 2>&1; rc=$?
        [ $rc -eq 2 ] && grep -q 'data.train: clips has clips, but image.frames is 0' out
        verdict "clips for a net of images are refused" $? "$rc: $(cat out)"
        "$brim" train clips.yaml image.frames=16 >out 2>&1; rc=$?
        [ $rc -eq 0 ] && grep -qE 'clips: ([0-9]+) of \1 clips have fewer than the 16 frames' out
        verdict "a net that sees more frames than clips have says so" $? "$rc: $(cat out)"
    fi
fi
exit $failed
