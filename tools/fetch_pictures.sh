#!/usr/bin/env bash
# Fetches real pictures into folder $2, as folders of classes. $1 says which:
#   emoji    $2/google and $2/twitter, 3,786 images of 10 classes each, from npm, versions pinned
#   videos   $2/visualiser, cartoon, screen, live: real videos from Debian packages
#   photos   $2/*.jpg: 20 photographs of Debian packages, 10 MB; PHOTOS of peer_suite.sh
#   clips    $2: an album of 43 clips of 32 frames from seven of these videos, cut by build/brim (or $BRIM),
#            19 MB; CLIPS of peer_suite.sh
# What is there already stays. Exit code 1 when anything is missing.
set -uo pipefail
what=${1:?emoji, videos, photos or clips}; to=${2:?folder}
brim=$(realpath -m "${BRIM:-$(dirname "$0")/../build/brim}")
mkdir -p "$to" || exit 1
to=$(cd "$to" && pwd)
[ -e "$to/.complete" ] && exit 0
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1

fetch_emoji() { # who drew them
    local name=emoji-datasource-$1
    npm pack --silent "$name@16.0.0" >/dev/null 2>&1 && mkdir "$1" &&
        tar xzf "$name"-*.tgz -C "$1" --strip-components=1 package/emoji.json "package/img/$1/64" &&
        python3 - "$1" "$to/$1" <<'END'
import json, os, shutil, sys
who, to = sys.argv[1:]
for emoji in json.load(open(f"{who}/emoji.json")):
    folder = os.path.join(to, emoji["category"].replace("&", "and"))
    os.makedirs(folder, exist_ok=True)
    for one in [emoji, *emoji.get("skin_variations", {}).values()]:
        file = f"{who}/img/{who}/64/{one['image']}"
        if one.get("has_img_" + who) and os.path.exists(file):
            shutil.copy(file, folder)
END
}

unpack() { # package, into the folder of that name
    apt-get download -qq "$1" >/dev/null 2>&1 && dpkg -x "$1"_*.deb "$1"
}

fetch_videos() { # class, then packages
    local class=$1 p
    shift
    mkdir -p "$to/$class"
    for p; do
        unpack "$p" || return 1
        find "$p" -regex '.*\.\(mp4\|avi\|ogv\|mkv\)' -exec cp {} "$to/$class/" \;
    done
}

# Most are full of detail: their crops of 480 to 720 pixels are JPEGs of 91 KB on average.
fetch_photos() {
    local p walls=plasma-workspace-wallpapers/usr/share/wallpapers
    local nature=mate-backgrounds/usr/share/backgrounds/mate/nature
    local opencv=opencv-doc/usr/share/doc/opencv-doc/examples/data
    local dlib=libdlib19.1/usr/share/doc/libdlib19.1/examples
    for p in plasma-workspace-wallpapers mate-backgrounds opencv-doc libdlib19.1; do
        unpack "$p" || return 1
    done
    for p in BytheWater ColdRipple ColorfulCups EveningGlow FallenLeaf OneStandsOut Path; do
        cp "$walls/$p/contents/images/2560x1600.jpg" "$to/$p.jpg" || return 1
    done
    cp "$nature"/{Blinds,Dune,GreenMeadow,RainDrops}.jpg "$dlib"/faces/{bald_guys,dogs}.jpg \
        "$opencv"/{aloeL,baboon,board,building,fruits,leuvenA}.jpg "$dlib/mmod_cars_test_image2.jpg" "$to/"
}

make_clips() { # folder of videos, album
    cd "$1" && "$brim" data clips cartoon/{history2,play113,win129}.mkv live/cockatoo.mp4 \
        screen/lightsoff.ogv visualiser/*12-{19-19,32-58}.mp4 --frames 32 --size 256 --out "$2"
}

fetch_clips() {
    local album=$to to=$tmp/videos
    fetch_videos visualiser lebiniou-data && fetch_videos cartoon planetblupi-common &&
        fetch_videos screen lightsoff && fetch_videos live python3-imageio && make_clips "$to" "$album"
}

case $what in
emoji) fetch_emoji google && fetch_emoji twitter ;;
videos)
    fetch_videos visualiser lebiniou-data && fetch_videos cartoon planetblupi-common &&
        fetch_videos screen five-or-more gnome-tetravex gnome-mahjongg lightsoff &&
        fetch_videos live python3-imageio opencv-doc &&
        # One is too short to be cut by time; the others are a film and films of a tree.
        rm -f "$to"/live/{realshort.mp4,Megamind.avi,Megamind_bugy.avi,tree.avi}
    ;;
photos) fetch_photos ;;
clips) fetch_clips ;;
*) echo "fetch: emoji, videos, photos or clips" >&2; exit 1 ;;
esac || { echo "fetch: $what could not be fetched" >&2; exit 1; }
touch "$to/.complete"
