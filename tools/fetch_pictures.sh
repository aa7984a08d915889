#!/usr/bin/env bash
# Fetches real pictures into folder $2, as folders of classes. $1 says which:
#   emoji    $2/google and $2/twitter, 3,786 images of 10 classes each, from npm, versions pinned
#   videos   $2/visualiser, cartoon, screen, live: real videos from Debian packages
# What is there already stays. Exit code 1 when anything is missing.
set -uo pipefail
what=${1:?emoji or videos}; to=${2:?folder}
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

fetch_videos() { # class, then packages
    local class=$1 p
    shift
    mkdir -p "$to/$class"
    for p; do
        apt-get download -qq "$p" >/dev/null 2>&1 && dpkg -x "$p"_*.deb "$p" || return 1
        find "$p" -regex '.*\.\(mp4\|avi\|ogv\|mkv\)' -exec cp {} "$to/$class/" \;
    done
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
*) echo "fetch: emoji or videos" >&2; exit 1 ;;
esac || { echo "fetch: $what could not be fetched" >&2; exit 1; }
touch "$to/.complete"
