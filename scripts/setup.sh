#!/usr/bin/env bash
# Makes .venv in the checkout with everything that tests, demo and benchmarks need. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV="${VENV:-.venv}"

complain() { echo "setup: $*" >&2; exit 1; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.11 python3.12 python3.13 python3.14; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

install_packages() {  # only where it needs no question: root, or sudo without a password
    command -v apt-get >/dev/null || return 1
    local sudo=""
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || return 1
        sudo="sudo -n"
    fi
    echo "setup: installing $*"
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q "$@" >/dev/null && return
    $sudo apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q "$@" >/dev/null
}

if [ ! -x "$VENV/bin/pip" ]; then
    if ! python=$(find_python); then
        install_packages python3 python3-venv || true
        python=$(find_python) || complain "Python 3.11 or newer is needed: install python3 and python3-venv (or set PYTHON=)"
    fi
    if ! "$python" -m venv "$VENV" >/dev/null 2>&1; then
        rm -rf "$VENV"
        install_packages python3-venv || true
        "$python" -m venv "$VENV" >/dev/null || complain "the venv module is missing: install python3-venv"
    fi
fi

can_compile() {  # a C compiler, and Python's headers
    command -v cc >/dev/null &&
        "$VENV/bin/python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

if ! can_compile; then
    { install_packages gcc libc6-dev python3-dev && can_compile; } ||
        echo "setup: no C compiler, or no headers of Python: the codec will run in pure Python, which is slower and no less"
fi

"$VENV/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' ||
    complain "pip could not install the requirements (see above); is a package index reachable?"
touch "$VENV/.anabranch-setup"
