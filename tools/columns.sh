#!/usr/bin/env bash
# Checks that no line of the project is longer than 110 characters. Comments, documents, scripts count, too.
# Rows of Markdown tables are excepted: a row cannot be broken.
# Prints FILE:LINE: N characters for each line that is too long. Exit code 1 when there is one.
set -euo pipefail
cd "$(dirname "$0")/.."
# Folders and files that are not checked. None.
later='^$'
find Makefile README.md src tests tools docs -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \
    -o -name '*.cc' -o -name '*.sh' -o -name '*.py' -o -name '*.js' -o -name '*.css' -o -name '*.md' \
    -o -name Makefile \) | grep -vE "$later" | sort | LC_ALL=C xargs awk '
    FILENAME ~ /\.md$/ && /^\|/ { next }
    # awk counts bytes here. Bytes 10xxxxxx continue a UTF-8 character, so the others are the characters.
    { text = $0; gsub(/[\200-\277]/, "", text) }
    length(text) > 110 { print FILENAME ":" FNR ": " length(text) " characters, more than 110"; bad = 1 }
    END { exit bad }
'
