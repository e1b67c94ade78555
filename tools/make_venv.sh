#!/bin/sh
# Makes the virtual environment $1 with a Python >= 3.11; says in a sentence why it cannot.
# PYTHON names another one than the first that is found: a path, a command, or a version such as 3.13.
set -eu

venv=$1
python=$(sh "$(dirname "$0")/find_python.sh" "${PYTHON:-any}")

if [ -z "$python" ]; then
    if [ -n "${PYTHON:-}" ]; then
        found="$PYTHON is not one that was found here"
    else
        found="none of python3, python3.11 to python3.14, python is one"
    fi
    echo "Weft needs Python 3.11 or newer, and $found:" \
        "install it, or name it with 'make PYTHON=/path/to/python ...'." >&2
    exit 1
fi
echo "Making $venv with $("$python" --version) ..."
if ! "$python" -m venv "$venv"; then
    rm -rf "$venv"
    echo "$python cannot make a virtual environment: install its venv module" \
        "(on Debian: apt-get install python3-venv) and run make again." >&2
    exit 1
fi
