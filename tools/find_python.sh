#!/bin/sh
# Prints a Python to use: the one that $1 names (a path, a command, or a version such as 3.13), else the first of at
# least 3.11; with "newest", the newest that is found. Looks on the PATH and among pyenv's. Says nothing where there is none.
set -eu

wanted=${1:-any}

# Prints the version of a Python that starts and is new enough. pyenv's commands are there for versions that do not start.
version_of() {
    "$1" -c 'import sys
if sys.version_info < (3, 11): sys.exit(1)
print("%d.%02d" % sys.version_info[:2])' 2>/dev/null
}

of_pyenv() {
    command -v pyenv >/dev/null 2>&1 || return 0
    for name in $(pyenv versions --bare 2>/dev/null | sort -rV); do
        case $name in "$1"*) echo "$(pyenv root)/versions/$name/bin/python" ;; esac
    done
}

case $wanted in
    any) candidates="python3 python3.11 python3.12 python3.13 python3.14 python $(of_pyenv 3.1)" ;;
    newest) candidates="python3.14 python3.13 python3.12 python3.11 python3 $(of_pyenv 3.1)" ;;
    3.*) candidates="python$wanted $(of_pyenv "$wanted")" ;;
    *) candidates=$wanted ;;
esac

best=''
best_version=0
for python in $candidates; do
    command -v "$python" >/dev/null 2>&1 || continue
    version=$(version_of "$python") || continue
    if [ "$wanted" != newest ]; then
        echo "$python"
        exit 0
    fi
    if [ -z "$best" ] || [ "$(printf '%s\n' "$version" "$best_version" | sort -V | tail -n 1)" != "$best_version" ]; then
        best=$python
        best_version=$version
    fi
done
[ -n "$best" ] && echo "$best"
exit 0
