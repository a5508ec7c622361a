#!/bin/sh
#SBATCH --job-name=trainverify
#SBATCH --array=1-8
#SBATCH --cpus-per-task=1
#SBATCH --requeue
# Asks a solver about the obligations of a bundle, each task of an array about its part:
#
#   sbatch [--array=1-50] [OPTION...] BUNDLE/data/slurm.sh BUNDLE ANSWERS [SOLVER [OPTION...]]
#
# Task K writes ANSWERS.K, outside of the bundle; a task that is started again goes on there. Then:
#
#   tv-check BUNDLE --answers ANSWERS.1 --answers ANSWERS.2 ...
set -eu
[ $# -ge 2 ] || { echo "usage: sbatch BUNDLE/data/slurm.sh BUNDLE ANSWERS [SOLVER [OPTION...]]" >&2; exit 2; }
bundle=$1 answers=$2
shift 2
exec sh "$bundle/data/run.sh" -o "$answers.$SLURM_ARRAY_TASK_ID" -j "${SLURM_CPUS_PER_TASK:-1}" \
  -p "$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN + 1))/$SLURM_ARRAY_TASK_COUNT" -- "$@"
