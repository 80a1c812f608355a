#!/usr/bin/env bash
# Train on Kubernetes with a JobSet (https://jobset.sigs.k8s.io): write it, start it, delete it.
#
#   export NAME=mine IMAGE=registry/mnmt-jax:1     # built by scripts/kubernetes/Dockerfile
#   HOSTS=2 GPUS=8 scripts/kubernetes/jobset.sh train --gin_file=... --workdir=/shared/runs/mine
#   HOSTS=4 SLICES=2 TPU=tpu-v5-lite-podslice TOPOLOGY=4x4 scripts/kubernetes/jobset.sh train ...
#   scripts/kubernetes/jobset.sh print ...         # what `train` gives to kubectl
#   scripts/kubernetes/jobset.sh delete
#
# One process per host. With GPUs they connect by the name of the first pod and by
# JOB_COMPLETION_INDEX; JAX's own detection would need the package kubernetes and a service account.
# With TPUs (on GKE, which sets their variables) JAX finds the processes and slices by itself.
#
# If a pod ends with 75, 137 or 143, or is evicted, all pods are created again, at most RESTARTS (20)
# times; after another status the JobSet has failed. VOLUME names a claim of storage that all pods
# share, mounted on /shared; a --workdir=gs://... needs none. LOCAL names a folder of the hosts,
# mounted on /local: copies of a cache in a bucket stay there when pods are created again.
#
# Environment variables of the pods: --env NAME=VALUE, or --env NAME with the value here; also
# MNMT_JAX_CACHE_FOLDER and MNMT_JAX_CACHE_GIB, if they are set here. SECRET names a secret whose
# keys are variables too (WANDB_API_KEY). SERVICE_ACCOUNT is the Kubernetes account of the pods,
# with the rights on the bucket.
# Written from the manuals of the tools and tested with fake commands, not on a cluster.
set -euo pipefail

case ${1:-} in
    print | train | delete) ;;
    -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//p}' "$0"; exit ;;
    *)
        echo "error: ${1:-no command}: must be print, train or delete; --help shows an example" >&2
        exit 2
        ;;
esac
if [ -z "${NAME:-}" ]; then
    echo "error: NAME, the name of the JobSet, is not set; --help shows an example" >&2
    exit 2
fi
FOLDER=${FOLDER:-/mnmt-jax}
HOSTS=${HOSTS:-1} # of a slice
SLICES=${SLICES:-1}
CHIPS=${CHIPS:-4} # of a host with TPUs
PORT=${PORT:-12355}
PASSED_ON=(MNMT_JAX_CACHE_FOLDER MNMT_JAX_CACHE_GIB)
GRACE=${GRACE:-120} # seconds from SIGTERM to SIGKILL, in which the run saves

# A YAML string in single quotes.
quoted() {
    printf "'%s'" "${1//\'/\'\'}"
}

# Kubernetes replaces $(NAME) in commands and variables, and $$ by $.
literal() {
    quoted "${1//\$/\$\$}"
}

# The arguments as items of a list.
items() {
    local argument
    for argument in "$@"; do
        printf -- '- %s\n' "$(literal "$argument")"
    done
}

VARIABLES=() # of the pods, as NAME=VALUE

# Set a variable of the pods: NAME=VALUE, or NAME with the value of this environment.
set_variable() {
    local name=${1%%=*} value variable others=()
    if [[ ! $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]]; then
        echo "error: --env $1: must be NAME=VALUE, or the NAME of a variable that is set here" >&2
        exit 2
    fi
    if [ "$1" = "$name" ] && [ -z "${!name+set}" ]; then
        echo "error: --env $name: is not set here; pass --env $name=VALUE" >&2
        exit 2
    fi
    value=${!name-}
    [ "$1" = "$name" ] || value=${1#*=}
    for variable in ${VARIABLES[@]+"${VARIABLES[@]}"}; do
        [ "${variable%%=*}" = "$name" ] || others+=("$variable")
    done
    VARIABLES=(${others[@]+"${others[@]}"} "$name=$value")
}

# Take --env from the arguments; the others are those of train.
read_arguments() {
    ARGUMENTS=()
    while [ $# -gt 0 ]; do
        case $1 in
            --env=*) set_variable "${1#--env=}" ;;
            --env) set_variable "${2:-}"; shift "$(($# > 1))" ;;
            *) ARGUMENTS+=("$1") ;;
        esac
        shift
    done
}

indented() {
    sed "s/^/$(printf "%$1s")/"
}

flags() {
    if [ -n "${TPU:-}" ]; then
        echo --distributed
    else
        echo "--coordinator_address=$NAME-hosts-0-0.$NAME:$PORT --num_processes=$HOSTS" \
            '--process_id="$JOB_COMPLETION_INDEX"'
    fi
}

# What a pod of each kind of accelerator needs, and the ports of its processes.
pod() {
    if [ -n "${TPU:-}" ]; then
        cat << YAML
nodeSelector:
  cloud.google.com/gke-tpu-accelerator: $(quoted "$TPU")
  cloud.google.com/gke-tpu-topology: $(quoted "$TOPOLOGY")
YAML
    fi
    if [ -n "${SERVICE_ACCOUNT:-}" ]; then
        echo "serviceAccountName: $(quoted "$SERVICE_ACCOUNT")"
    fi
    cat << YAML
volumes:
- name: shm
  emptyDir: {medium: Memory}
YAML
    if [ -n "${VOLUME:-}" ]; then
        cat << YAML
- name: shared
  persistentVolumeClaim: {claimName: $(quoted "$VOLUME")}
YAML
    fi
    if [ -n "${LOCAL:-}" ]; then
        cat << YAML
- name: local
  hostPath: {path: $(quoted "$LOCAL"), type: DirectoryOrCreate}
YAML
    fi
}

environment() {
    local variable
    if [ -n "${SECRET:-}" ]; then
        echo "envFrom: [{secretRef: {name: $(quoted "$SECRET")}}]"
    fi
    [ ${#VARIABLES[@]} = 0 ] || echo env:
    for variable in ${VARIABLES[@]+"${VARIABLES[@]}"}; do
        echo "- {name: $(quoted "${variable%%=*}"), value: $(literal "${variable#*=}")}"
    done
}

container() {
    if [ -n "${TPU:-}" ]; then
        cat << YAML
resources: {limits: {google.com/tpu: $CHIPS}}
ports:
- {name: coordinator, containerPort: 8482}
- {name: tpu, containerPort: 8471}
- {name: slices, containerPort: 8080}
YAML
    else
        cat << YAML
resources: {limits: {nvidia.com/gpu: $GPUS}}
ports:
- {name: coordinator, containerPort: $PORT}
YAML
    fi
    cat << YAML
volumeMounts:
- {name: shm, mountPath: /dev/shm}
YAML
    if [ -n "${VOLUME:-}" ]; then
        echo '- {name: shared, mountPath: /shared}'
    fi
    if [ -n "${LOCAL:-}" ]; then
        echo '- {name: local, mountPath: /local}'
    fi
    environment
}

check_variables() {
    : "${IMAGE:?image with the checkout in $FOLDER}"
    if [ -n "${TPU:-}" ]; then
        : "${TOPOLOGY:?topology of a slice, e.g. 4x4}"
        if [ $((${TOPOLOGY//x/*})) != $((HOSTS * CHIPS)) ]; then
            echo "error: HOSTS=$HOSTS of CHIPS=$CHIPS do not make TOPOLOGY=$TOPOLOGY; set HOSTS" >&2
            exit 2
        fi
    else
        : "${GPUS:?number of GPUs of a host; for TPUs set TPU and TOPOLOGY}"
        if [ "$SLICES" != 1 ]; then
            echo "error: SLICES=$SLICES needs TPU; for several hosts with GPUs set HOSTS" >&2
            exit 2
        fi
    fi
}

# Each slice has a node pool of its own.
annotations() {
    if [ -n "${TPU:-}" ]; then
        cat << YAML
annotations:
  alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
YAML
    fi
}

print() {
    check_variables
    read_arguments "$@"
    cat << YAML
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $(quoted "$NAME")
$(annotations | indented 2)
spec:
  network:
    enableDNSHostnames: true
    subdomain: $(quoted "$NAME")
  failurePolicy:
    maxRestarts: ${RESTARTS:-20}
    rules:
    - name: error
      action: FailJobSet
      onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
  - name: hosts
    replicas: $SLICES
    template:
      spec:
        completionMode: Indexed
        completions: $HOSTS
        parallelism: $HOSTS
        backoffLimit: 0
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes:
              containerName: train
              operator: NotIn
              values: [75, 137, 143]
        template:
          spec:
            restartPolicy: Never
            terminationGracePeriodSeconds: $GRACE
$(pod | indented 12)
            containers:
            - name: train
              image: $(quoted "$IMAGE")
              command:
$(items bash -c | indented 14)
              - $(quoted "cd $FOLDER && . scripts/xla_flags.sh && exec .venv/bin/python scripts/train.py $(flags) \"\$@\"")
              - train
$(items ${ARGUMENTS[@]+"${ARGUMENTS[@]}"} | indented 14)
$(container | indented 14)
YAML
}

train() {
    local manifest
    manifest=$(print "$@")
    kubectl apply -f - <<< "$manifest"
}

delete() {
    kubectl delete jobset "$NAME" --ignore-not-found
}

for name in "${PASSED_ON[@]}"; do
    [ -z "${!name+set}" ] || set_variable "$name"
done
command=$1
shift
"$command" "$@"
