#!/usr/bin/env bash
# A TPU slice from nothing to a finished run, through preemptions.
#
#   export NAME=mine ZONE=us-west4-a TYPE=v5litepod-16 VERSION=v2-alpha-tpuv5-lite BUCKET=my-bucket
#   scripts/tpu/pod.sh create                 # a spot slice; SPOT= for one that stays
#   gcloud storage cp -r runs/mine/cache gs://my-bucket/cache
#   scripts/tpu/pod.sh setup                # this checkout, its environment, the bucket on /mnt/bucket
#   scripts/tpu/pod.sh train --gin_file=... --gin.Data.cache="'/mnt/bucket/cache'" --workdir=gs://my-bucket/mine
#   scripts/tpu/pod.sh loop  ...            # the same: all of these until the run is complete
#   scripts/tpu/pod.sh delete
#
# `train` starts the same command on every host, after what still runs there has stopped; SIGTERM to the
# process on one of them stops all after a checkpoint. `loop` goes on after a preemption (the slice is
# made again) and after a lost process, at most TRIES (20) times; it ends when the run is complete or
# when the command itself is wrong. The mount is for reading; a run is written to gs:// itself.
# Written by the tools' manuals and tested with commands that pretend: no slice was at hand.
set -euo pipefail
cd "$(dirname "$0")/../.."

: "${NAME:?name of the slice}" "${ZONE:?for instance us-west4-a}"
TYPE=${TYPE:-v5litepod-16}
VERSION=${VERSION:-v2-alpha-tpuv5-lite}
SPOT=${SPOT---spot}
FOLDER=mnmt-jax
WAIT=${WAIT:-60} # seconds between two tries

on_all_hosts() {
    gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"
}

state() {
    gcloud compute tpus tpu-vm describe "$NAME" --zone="$ZONE" --format='value(state)' 2> /dev/null ||
        echo ABSENT
}

create() {
    gcloud compute tpus tpu-vm create "$NAME" --zone="$ZONE" --accelerator-type="$TYPE" \
        --version="$VERSION" $SPOT
}

setup() {
    local archive
    archive=$(mktemp --suffix=.tar.gz)
    git archive --format=tar.gz --output="$archive" HEAD &&
        gcloud compute tpus tpu-vm scp "$archive" "$NAME":"$FOLDER.tar.gz" --zone="$ZONE" \
            --worker=all || return
    rm "$archive"
    on_all_hosts "mkdir -p $FOLDER && tar xzf $FOLDER.tar.gz -C $FOLDER && cd $FOLDER &&
        . scripts/environment.sh && prepare_environment '[tpu,gcs]'" || return
    if [ -n "${BUCKET:-}" ]; then
        on_all_hosts "sudo mkdir -p /mnt/bucket && sudo chmod 777 /mnt/bucket &&
            (mountpoint -q /mnt/bucket || gcsfuse --implicit-dirs $BUCKET /mnt/bucket)"
    fi
}

train() {
    local arguments
    arguments=$(printf ' %q' "$@")
    # A broken connection leaves the processes running, and two runs must not share a folder. The
    # brackets keep the pattern from finding the shell that it is given to.
    on_all_hosts "pkill -TERM -f 'scripts/[t]rain.py'
        while pgrep -f 'scripts/[t]rain.py' > /dev/null; do sleep 1; done"
    on_all_hosts "cd $FOLDER && . scripts/xla_flags.sh &&
        .venv/bin/python scripts/train.py --distributed$arguments"
}

delete() {
    gcloud compute tpus tpu-vm delete "$NAME" --zone="$ZONE" --quiet
}

# Statuses of a run that its own command mends by being started again: 75 a process was lost, 137 killed,
# 143 SIGTERM, 255 ssh lost the host.
loop() {
    local status ready='' tries=0
    while [ "$tries" -lt "${TRIES:-20}" ]; do
        case $(state) in
            READY) ;;
            ABSENT) create || { tries=$((tries + 1)); sleep "$WAIT"; continue; }; ready='' ;;
            PREEMPTED | TERMINATED | FAILED) delete || sleep "$WAIT"; continue ;;
            *) sleep "$WAIT"; continue ;;
        esac
        tries=$((tries + 1))
        [ -n "$ready" ] || { setup && ready=yes; } || { sleep "$WAIT"; continue; }
        status=0
        train "$@" || status=$?
        case $status in
            0) return 0 ;;
            75 | 137 | 143 | 255) echo "status $status: trying again in $WAIT s" >&2; sleep "$WAIT" ;;
            *) return "$status" ;;
        esac
    done
    echo "error: gave up after $tries tries; set TRIES for more" >&2
    return 75
}

command=${1:?create, setup, train, loop, delete or state}
shift
case $command in
    create | setup | train | loop | delete | state) "$command" "$@" ;;
    *) echo "error: $command: must be create, setup, train, loop, delete or state" >&2; exit 2 ;;
esac
