#!/usr/bin/env bash
# A Slurm of one node from Debian's packages, to try train.sbatch on. For a container of its own, as root:
#
#     apt-get install --yes slurm-wlm munge
#     deploy/slurm/try_on_one_node.sh
#
# Starts munge, the controller and the node's daemon with a configuration in .parrotflow/slurm, submits the script, waits
# for the job, shows its log and stops what it started. With PREEMPT_AFTER=SECONDS it asks the job to stop so long after
# its training began, as Slurm does before it takes a node away: the job is requeued and continues.
set -euo pipefail
cd "$(dirname "$0")/../.."
state=$PWD/.parrotflow/slurm
mkdir -p "$state/spool" "$state/ctld" /run/munge
host=$(hostname -s)
export SLURM_CONF=$state/slurm.conf
cat > "$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
MpiDefault=none
JobRequeue=1
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
SlurmdSpoolDir=$state/spool
StateSaveLocation=$state/ctld
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF

[ -s /etc/munge/munge.key ] || mungekey --create
chown -R munge: /run/munge /etc/munge /var/log/munge /var/lib/munge
runuser -u munge -- munged --foreground & munge=$!
sleep 1
slurmctld -D & controller=$!
slurmd -D & node=$!
trap 'kill $node $controller $munge 2>/dev/null || true' EXIT
until sinfo --noheader --format=%T 2>/dev/null | grep -q idle; do sleep 1; done

job=$(sbatch --parsable "$@" deploy/slurm/train.sbatch)
echo "job $job"
if [ -n "${PREEMPT_AFTER:-}" ]; then
    until grep -q "^step " "slurm-$job.log" 2>/dev/null; do sleep 1; done
    sleep "$PREEMPT_AFTER"
    scancel --signal=TERM --batch "$job"
    until squeue --noheader --job "$job" --format=%T | grep -q PENDING; do sleep 1; done
    # Slurm lets a job that queued itself again wait for two minutes.
    scontrol update JobId="$job" StartTime=now
fi
while squeue --noheader --job "$job" 2>/dev/null | grep -q .; do sleep 2; done
cat "slurm-$job.log"
scontrol show job "$job" | grep -E "JobState|ExitCode"
