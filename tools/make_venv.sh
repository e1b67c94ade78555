#!/bin/sh
# Makes the virtual environment $1 with the first Python >= 3.11 found; says in a sentence why it cannot.
# PYTHON=/path/to/python overrides the search.
set -eu

venv=$1
enough='import sys; sys.exit(sys.version_info < (3, 11))'

for python in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14 python}; do
    command -v "$python" >/dev/null 2>&1 || continue
    "$python" -c "$enough" 2>/dev/null || continue
    echo "Making $venv with $("$python" --version) ..."
    if ! "$python" -m venv "$venv"; then
        rm -rf "$venv"
        echo "$python cannot make a virtual environment: install its venv module" \
            "(on Debian: apt-get install python3-venv) and run make again." >&2
        exit 1
    fi
    exit 0
done

echo "Weft needs Python 3.11 or newer, and none of ${PYTHON:-python3, python3.11 to python3.14, python} is one:" \
    "install it, or name it with 'make PYTHON=/path/to/python ...'." >&2
exit 1
