# Sourced by other scripts. Creates .venv if it does not exist, installs this project into it and
# sets $python. Never changes another environment.
#   prepare_environment EXTRAS   e.g. prepare_environment "[test]"
# It returns 2 if there is no Python, and 1 if the installation failed.

supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11, 3.12 or 3.13 found; install one or set PYTHON=/path/to/python3" >&2
    return 2
}

# Make .venv, or add pip to one whose creation was interrupted.
make_environment() {
    local interpreter
    if [ ! -x .venv/bin/python ]; then
        interpreter=$(find_python) || return
        echo "Creating .venv with $interpreter" >&2
        "$interpreter" -m venv .venv >&2 && return
        rm -f .venv/bin/python # the next call starts again
        echo "error: $interpreter cannot make .venv, see above" >&2
        return 1
    fi
    .venv/bin/python -m pip --version > /dev/null 2>&1 && return
    .venv/bin/python -m ensurepip > /dev/null 2>&1 && return
    echo "error: .venv has no pip, and 'python -m ensurepip' fails; install python3-venv (Debian)" \
        "or remove .venv" >&2
    return 1
}

prepare_environment() {
    local extras=$1 stamp
    python=$PWD/.venv/bin/python
    # Install again only if the extras or setup.cfg have changed since the last complete install.
    stamp=".venv/installed$extras-$(cksum < setup.cfg | cut -d' ' -f1)"
    if [ -x "$python" ]; then
        if [ -e "$stamp" ]; then return; fi
        if [ -z "$extras" ] && compgen -G ".venv/installed*${stamp#.venv/installed}" > /dev/null; then
            return # with extras
        fi
    fi
    make_environment || return
    echo "Installing mnmt-jax$extras into .venv (several hundred megabytes the first time)" >&2
    "$python" -m pip install --quiet --disable-pip-version-check --editable ".$extras" >&2 ||
        return 1
    touch "$stamp"
}
