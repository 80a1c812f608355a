#!/usr/bin/env bash
# Train on TPU slices: create them, set them up, train, and resume after preemptions.
#
#   export NAME=mine ZONE=us-west4-a TYPE=v5litepod-16 VERSION=v2-alpha-tpuv5-lite BUCKET=my-bucket
#   scripts/tpu/pod.sh create                 # a spot slice; SPOT= for an on-demand slice
#   gcloud storage cp -r runs/mine/cache gs://my-bucket/cache
#   scripts/tpu/pod.sh setup                # copy the checkout, install, mount the bucket on /mnt/bucket
#   scripts/tpu/pod.sh train --gin_file=... --gin.Data.cache="'/mnt/bucket/cache'" --workdir=gs://my-bucket/mine
#   scripts/tpu/pod.sh loop  ...            # arguments of train: create, set up and train until complete
#   scripts/tpu/pod.sh delete
#
# `setup` needs Python 3.11 to 3.13 on the hosts. SETUP is a command that runs there before, e.g.
# SETUP='sudo apt-get update && sudo apt-get install -y python3.11 python3.11-venv'. PYTHON is the
# path of the interpreter on the hosts, if it is not found by its name.
#
# SLICES=N requests a queued resource of N slices instead, which waits for free chips; `loop` waits
# with it. Several slices train one model: the batch is split over them, the rest within each.
#
# `train` stops processes of an earlier training and starts the same command on every host. SIGTERM to
# the process on one host stops all hosts after a checkpoint. `loop` retries after a preemption (it
# creates the slice again) and after a lost process, at most TRIES (20) times. It ends when the run is
# complete, when the command has an error or when the hosts have no Python. Use the mount for reading
# only; write runs to gs://.
# Written from the manuals of the tools and tested with fake commands, not on a slice.
set -euo pipefail
cd "$(dirname "$0")/../.."

: "${NAME:?name of the slice}" "${ZONE:?zone, e.g. us-west4-a}"
TYPE=${TYPE:-v5litepod-16}
VERSION=${VERSION:-v2-alpha-tpuv5-lite}
SPOT=${SPOT---spot}
SLICES=${SLICES:-} # empty: a slice that is there at once or not at all
FOLDER=mnmt-jax
WAIT=${WAIT:-60} # seconds between tries

if [ -n "$SLICES" ]; then
    KIND=queued-resources
    HOSTS=(--worker=all --node=all)
    STATE='value(state.state)'
else
    KIND=tpu-vm
    HOSTS=(--worker=all)
    STATE='value(state)'
fi

tpus() {
    gcloud compute tpus "$KIND" "$1" "$NAME" --zone="$ZONE" "${@:2}"
}

on_all_hosts() {
    tpus ssh "${HOSTS[@]}" --command="$1"
}

state() {
    tpus describe --format="$STATE" 2> /dev/null || echo ABSENT
}

create() {
    case $SLICES in
        '') tpus create --accelerator-type="$TYPE" --version="$VERSION" $SPOT ;;
        1) tpus create --accelerator-type="$TYPE" --runtime-version="$VERSION" --node-id="$NAME" $SPOT ;;
        *)
            tpus create --accelerator-type="$TYPE" --runtime-version="$VERSION" \
                --node-count="$SLICES" --node-prefix="$NAME" $SPOT
            ;;
    esac
}

setup() {
    local archive
    archive=$(mktemp --suffix=.tar.gz)
    git archive --format=tar.gz --output="$archive" HEAD || return 2
    gcloud compute tpus "$KIND" scp "$archive" "$NAME":"$FOLDER.tar.gz" --zone="$ZONE" \
        "${HOSTS[@]}" || return
    rm "$archive"
    # 1: only a missing Python ends with 2.
    on_all_hosts "{ mkdir -p $FOLDER && tar xzf $FOLDER.tar.gz -C $FOLDER && cd $FOLDER${SETUP:+ && ($SETUP)}; } ||
        exit 1; . scripts/environment.sh &&
        ${PYTHON:+PYTHON=$(printf %q "$PYTHON")} prepare_environment '[tpu,gcs]'" || return
    if [ -n "${BUCKET:-}" ]; then
        on_all_hosts "sudo mkdir -p /mnt/bucket && sudo chmod 777 /mnt/bucket &&
            (mountpoint -q /mnt/bucket || gcsfuse --implicit-dirs $BUCKET /mnt/bucket)"
    fi
}

train() {
    local arguments
    arguments=$(printf ' %q' "$@")
    # After a broken connection the processes still run, and two runs must not share a folder. The
    # brackets keep the pattern from matching its own shell.
    on_all_hosts "pkill -TERM -f 'scripts/[t]rain.py'
        while pgrep -f 'scripts/[t]rain.py' > /dev/null; do sleep 1; done"
    on_all_hosts "cd $FOLDER && . scripts/xla_flags.sh &&
        .venv/bin/python scripts/train.py --distributed$arguments"
}

delete() {
    tpus delete ${SLICES:+--force} --quiet
}

# Statuses after which the command is retried: 75 lost process, 137 killed, 143 SIGTERM, 255 ssh lost
# the host. Setup is retried unless its status is 2: no checkout here, or no Python on the hosts.
loop() {
    local status ready='' tries=0
    while [ "$tries" -lt "${TRIES:-20}" ]; do
        case $(state) in
            READY | ACTIVE) ;;
            ABSENT)
                create || { tries=$((tries + 1)); sleep "$WAIT"; continue; }
                ready=''
                [ -z "$SLICES" ] || continue # a request is granted later
                ;;
            PREEMPTED | TERMINATED | SUSPENDED) delete || sleep "$WAIT"; continue ;;
            FAILED) tries=$((tries + 1)); delete || sleep "$WAIT"; continue ;;
            *) sleep "$WAIT"; continue ;;
        esac
        tries=$((tries + 1))
        status=0
        [ -n "$ready" ] || setup || status=$?
        case $status in
            0) ready=yes ;;
            2) return 2 ;;
            *) echo "setup: status $status: trying again in $WAIT s" >&2; sleep "$WAIT"; continue ;;
        esac
        train "$@" || status=$?
        case $status in
            0) return 0 ;;
            75 | 137 | 143 | 255) echo "status $status: trying again in $WAIT s" >&2; sleep "$WAIT" ;;
            *) return "$status" ;;
        esac
    done
    echo "error: gave up after $tries tries; set TRIES to a larger number" >&2
    return 75
}

command=${1:?create, setup, train, loop, delete or state}
shift
case $command in
    create | setup | train | loop | delete | state) "$command" "$@" ;;
    *) echo "error: $command: must be create, setup, train, loop, delete or state" >&2; exit 2 ;;
esac
