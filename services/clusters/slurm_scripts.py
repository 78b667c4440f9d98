"""The two scripts of a cluster under SLURM: the job, and what it runs on each of its nodes.

Rendered, and run by tests with stand-ins for SLURM's commands; not run on a real SLURM here.

    FOLDER/NAME/job.sh  node.sh  inventory.yaml
    FOLDER/NAME/secrets/      0700; removed by `down`
    FOLDER/NAME/runs/         of all jobs; they stay
    FOLDER/NAME/logs/JOB/     one folder for each node
    FOLDER/NAME/jobs/JOB/     what nodes say of themselves; `ready` once all of them are

The nodes' own folders are below /tmp, since sockets do not live on every shared file system.
"""

from __future__ import annotations

import math
from pathlib import Path
from shlex import quote

from services.clusters.inventory import SlurmInventory

START_SECONDS = 600  # for all nodes to be ready, once the job runs
WARNING_SECONDS = 120  # before the time limit: runs save a checkpoint


def directives(inventory: SlurmInventory, base: Path) -> list[str]:
    """All nodes of a job are alike, so each has what the larger of the two shapes asks for."""
    shapes = (inventory.head, inventory.worker) if inventory.workers else (inventory.head,)
    cores = [shape.cores for shape in shapes]
    gpus = max(shape.gpus for shape in shapes)
    given = {
        "job-name": f"repertory-{inventory.name}",
        "nodes": inventory.workers + 1,
        "ntasks-per-node": 1,
        "cpus-per-task": None if None in cores else max(core for core in cores if core),
        "mem": f"{math.ceil(inventory.memory_gb * 1024)}M",
        "gpus-per-node": gpus or None,
        "time": inventory.time,
        "partition": inventory.partition,
        "account": inventory.account,
        "output": base / "logs" / "job-%j.log",
        "signal": f"B:TERM@{WARNING_SECONDS}",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in given.items() if value is not None]
    if None in cores:
        lines.append("#SBATCH --exclusive")  # all the cores there are
    return [*lines, "#SBATCH --no-kill"]  # a node that is lost does not end the others


def job_script(inventory: SlurmInventory, base: Path, environment: Path) -> str:
    words = " ".join(map(quote, inventory.train))
    modules = "\n".join(f"module load {quote(name)}" for name in inventory.modules)
    header = "\n".join(["#!/bin/bash", *directives(inventory, base)])
    setup = f"set +u # modules are not written for it\n{modules}\nset -u\n" if modules else ""
    return f"""{header}
# Of the cluster {inventory.name}: the first node is the head, all others are workers.
set -euo pipefail
umask 077
{setup}base={quote(str(base))}
export PATH={quote(str(environment / "bin"))}:"$PATH"
{_code(inventory)}state="$base/jobs/$SLURM_JOB_ID"
rm -rf -- "$state"
mkdir -p -- "$state/nodes" "$base/runs" "$base/logs/$SLURM_JOB_ID"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export REPERTORY_HEAD_HOST="${{hosts[0]}}"

nodes=
training=
leave() {{
  trap - EXIT
  if [ -n "$nodes" ]; then
    kill -TERM "$nodes" 2>/dev/null || true
    wait "$nodes" || true
  fi
  rm -f -- "$state/ready"
}}
told_to_stop() {{
  # A run saves a checkpoint and ends by itself; then the nodes are ended.
  if [ -n "$training" ]; then
    kill -TERM "$training" 2>/dev/null || true
  else
    exit 143
  fi
}}
trap leave EXIT
trap told_to_stop TERM INT

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\
  --no-kill --kill-on-bad-exit=0 --cpu-bind=none bash "$base/node.sh" &
nodes=$!

count_ready() {{
  {{ grep -ls '"phase": "ready"' "$state"/nodes/*.json || true; }} | wc -l
}}
deadline=$((SECONDS + {START_SECONDS}))
until [ "$(count_ready)" -ge "$SLURM_JOB_NUM_NODES" ]; do
  if ! kill -0 "$nodes" 2>/dev/null; then
    echo "the nodes ended before they were ready: see $base/logs/$SLURM_JOB_ID" >&2
    exit 1
  fi
  if [ "$SECONDS" -ge "$deadline" ]; then
    echo "$(count_ready) of $SLURM_JOB_NUM_NODES nodes are ready after {START_SECONDS} s" >&2
    exit 1
  fi
  sleep 1
done
touch -- "$state/ready"
{_ending(inventory, words)}"""


def _code(inventory: SlurmInventory) -> str:
    if inventory.code is None:
        return ""
    return 'export PYTHONPATH="$base/code${PYTHONPATH:+:$PYTHONPATH}"\n'


def _ending(inventory: SlurmInventory, words: str) -> str:
    if not inventory.train:
        return 'wait "$nodes"\n'
    return f"""
export REPERTORY_NODE="/tmp/repertory-{inventory.name}-$SLURM_JOB_ID"
repertory train {words} --address {quote(inventory.name)} &
training=$!
while kill -0 "$training" 2>/dev/null; do
  wait "$training" || true # a signal ends the waiting, not the run
done
code=0
wait "$training" || code=$?
if [ "$code" -ne 0 ]; then
  exit "$code"
fi
"""


def node_script(inventory: SlurmInventory, base: Path) -> str:
    return f"""#!/bin/bash
# One node of the cluster {inventory.name}, until it is told to stop.
set -euo pipefail
umask 077
base={quote(str(base))}
state="$base/jobs/$SLURM_JOB_ID"
host="${{SLURMD_NODENAME:-$(hostname -s)}}"
logs="$base/logs/$SLURM_JOB_ID/$host"
folder="/tmp/repertory-{inventory.name}-$SLURM_JOB_ID"

# Ours alone: where somebody else has made it, this ends here.
if [ -O "$folder" ]; then
  rm -rf -- "$folder"
fi
mkdir -m 700 -- "$folder"
mkdir -p -- "$logs"
ln -s -- "$logs" "$folder/logs"

# The address by which others know this node; its own name may be a loopback address to itself.
address=$({{ getent ahostsv4 "$host" || true; }} | awk '$1 !~ /^127\\./ && !n++ {{ print $1 }}')
if [ -z "$address" ]; then
  address=$(hostname -I | awk '{{ print $1 }}')
fi
if [ "$host" = "$REPERTORY_HEAD_HOST" ]; then
  role='head'
  head_address="$address"
  ln -s -- "$base/runs" "$folder/runs"
  printf '%s\\n' "$address" >"$state/.head"
  mv -- "$state/.head" "$state/head"
else
  role='worker'
  deadline=$((SECONDS + {START_SECONDS}))
  until [ -s "$state/head" ]; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "$host: the head, $REPERTORY_HEAD_HOST, has not started" >&2
      exit 1
    fi
    sleep 1
  done
  head_address=$(<"$state/head")
fi

keeper=
leave() {{
  trap - EXIT
  if [ -n "$keeper" ]; then
    kill -TERM "$keeper" 2>/dev/null || true
    wait "$keeper" || true
  fi
  rm -rf -- "$folder"
  rm -f -- "$state/nodes/$host.json" "$state/nodes/$host.card"
}}
trap leave EXIT
trap 'exit 143' TERM INT

repertory cluster node "$base/inventory.yaml" --role "$role" --name "$host" \\
  --address "$address" --head-address "$head_address" --secrets "$base/secrets" \\
  --folder "$folder" >"$logs/keeper.log" 2>&1 &
keeper=$!
printf '{{"role": "%s", "address": "%s"}}\\n' "$role" "$address" >"$state/nodes/$host.card"
while kill -0 "$keeper" 2>/dev/null; do
  # Others cannot see into this node: what it says of itself is put where they can.
  if cp -- "$folder/state.json" "$state/nodes/.$host" 2>/dev/null; then
    mv -- "$state/nodes/.$host" "$state/nodes/$host.json"
  fi
  sleep 1 &
  wait $!
done
wait "$keeper"
"""
